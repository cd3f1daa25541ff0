#include "config/migrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/config/config_io.h>

#include "config/config_file.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::string migrated(std::string_view text) { return migrate_toml(text, "a.toml").text; }

TEST(Migration, RenamesInTheSectionAndKeepsComments) {
  const Migration migration = migrate_toml("# mine\n[memory]\n  keep = false  # why\n", "a.toml");
  EXPECT_EQ(migration.text, "# mine\n[memory]\n  keep_freed = false  # why\n");
  EXPECT_THAT(migration.changes, ElementsAre("memory.keep is now memory.keep_freed"));
}

TEST(Migration, MovesASettingToItsSection) {
  EXPECT_EQ(migrated("learning-rate = 0.1 # l\nseed = 1\n[optim]\nmax_grad_norm = 1\n"),
            "seed = 1\n[optim]\nlr = 0.1 # l\nmax_grad_norm = 1\n");
  EXPECT_EQ(migrated("num_workers = 4\n"), "\n[data]\nworkers = 4\n") << "a new section";
  EXPECT_EQ(migrated("seed = 1\n[trainer]\nepochs = 3\n"), "seed = 1\nmax_epochs = 3\n[trainer]\n");
  EXPECT_EQ(migrated("[trainer]\nmax_epochs = 3\naccumulate_grad_batches = 2\n"),
            "max_epochs = 3\naccumulation = 2\n[trainer]\n");
  EXPECT_EQ(migrated("optim.max_grad_norm = 1\nlearning_rate = 0.1\n"), "optim.max_grad_norm = 1\noptim.lr = 0.1\n")
      << "TOML allows no section [optim] here";
}

TEST(Migration, MovesTheCommentAboveASettingWithIt) {
  EXPECT_EQ(migrated("# a run\n\n[trainer]\n# how long,\n# in epochs\nmax_epochs = 3\nzebra = 1\n"),
            "# a run\n\n# how long,\n# in epochs\nmax_epochs = 3\n[trainer]\nzebra = 1\n");
}

TEST(Migration, JoinsTheEarlierScheduleIntoAText) {
  EXPECT_EQ(migrated("[optim]\nwarmup_steps = 100\nschedule = \"cosine\" # s\nmin_lr_ratio = 0.1\ndecay_steps = 900\n"),
            "[optim]\nschedule = \"warmup:100+cosine:until=900,to=0.1\" # s\n");
  EXPECT_EQ(migrated("[optim]\nschedule = \"constant\"\nwarmup_steps = 100\ndecay_steps = 0\n"),
            "[optim]\nschedule = \"warmup:100+constant\"\n");
  EXPECT_EQ(migrated("[optim]\nschedule = \"cosine\"\nwarmup_steps = 0\nmin_lr_ratio = 0\n"),
            "[optim]\nschedule = \"cosine\"\n");
  for (const char* text : {"warmup:100+cosine:until=900,to=0.1", "warmup:100+constant"}) {
    EXPECT_THAT(LrSchedule(text).problems(), IsEmpty()) << text;
  }
}

TEST(Migration, KeepsTheByteOrderMark) {
  EXPECT_EQ(migrated("\xEF\xBB\xBFlearning_rate = 0.1\n[optim]\nmax_grad_norm = 1\n"),
            "\xEF\xBB\xBF[optim]\nlr = 0.1\nmax_grad_norm = 1\n");
}

TEST(Migration, LeavesWhatOnlyAPersonCanChange) {
  for (const std::string text : {
           "seed = 7\n[optim]\nlr = 0.1\n",                                    // nothing old
           "learning_rate = 0.1\noptim.lr = 0.2\n",                            // which one?
           "[optim]\nwarmup_steps = 100\n",                                    // the program's curve is not known
           "optim = { schedule = \"cosine\", warmup_steps = 100, lr = 1 }\n",  // several settings on a line
           "\"epochs\" = 3\n",                                                 // a quoted name
           "strategy = \"ddp\"\n",                                             // there is no such setting any more
           "zebra = 1\n",
       }) {
    const Migration migration = migrate_toml(text, "a.toml");
    EXPECT_EQ(migration.text, text);
    EXPECT_THAT(migration.changes, IsEmpty()) << text;
  }
  EXPECT_THROW(migrate_toml("a = ", "a.toml"), ConfigError);
}

TEST(ConfigTemplate, ChangesNothingAndIsReadable) {
  const std::string text = config_template();
  EXPECT_THAT(parse_config_toml(text, "template"), IsEmpty());
  // Without the first # of the values it is the default configuration.
  std::string uncommented;
  std::size_t values = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool begins = at == 0 || text[at - 1] == '\n';
    if (begins && text[at] == '#' && text[at + 1] != ' ') {
      ++values;
    } else {
      uncommented += text[at];
    }
  }
  const auto settings = parse_config_toml(uncommented, "template");
  EXPECT_EQ(settings.size(), values);
  EXPECT_EQ(values + 1, config_values({}).size()) << "fresh is only a flag";
  const std::string defaults = config_toml({});
  const auto expected = parse_config_toml(defaults, "defaults");
  ASSERT_EQ(settings.size(), expected.size());
  for (std::size_t i = 0; i < settings.size(); ++i) {
    EXPECT_EQ(settings[i].name, expected[i].name);
    EXPECT_EQ(describe(settings[i].value), describe(expected[i].value)) << settings[i].name;
  }
  for (const char* part :
       {"# Value: auto, nccl, gloo or shm\n#backend = \"auto\"\n", "# Value: a whole number from 0 to 65536\n",
        "[checkpoint]\n", "Not for a file: only the flag --fresh sets it.\n"}) {
    EXPECT_THAT(text, testing::HasSubstr(part));
  }
}

}  // namespace
}  // namespace lockstep
