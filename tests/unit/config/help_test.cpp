#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/config/config_io.h>

#include "base/text.h"
#include "config/command_tokens.h"
#include "support/generated_part.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

TEST(HelpText, ListsEveryFieldAndFlagWithHelpAll) {
  std::string data = "data/digits";
  bool quiet = false;
  std::int64_t epochs = 5;
  Flags flags;
  flags.add("data", &data, "where the data is", TextKind::existing_path)
      .add("quiet", &quiet, "say less")
      .positional("epochs", &epochs, "how long");
  const std::string text = help_all_text("digits", {.max_epochs = 7}, flags);
  for (const auto& [name, value] : config_values({})) {
    EXPECT_TRUE(text.find("--" + name + " ") != std::string::npos || text.find("--[no-]" + name) != std::string::npos)
        << name;
  }
  for (const char* expected :
       {"usage: digits [flags] [epochs]", "--data PATH", "where the data is (default: data/digits)", "--[no-]quiet",
        "how long (default: 5)", "--config FILE", "--print-config", "--dry-run", "--hardware FILE", "--help",
        "--help-all", "Section optim:", "--backend auto|nccl|gloo", "--max_epochs N", "(default: 7)"}) {
    EXPECT_THAT(text, HasSubstr(expected));
  }
  const std::string wide = help_all_text("digits", {}, flags, 120);
  EXPECT_THAT(wide, HasSubstr("deletes nothing (a flag only)"));
}

TEST(HelpText, ListsTheFlagsThatPeopleNeedFirst) {
  std::string data = "data/digits";
  Flags flags;
  flags.add("data", &data, "where the data is");
  const std::string text = help_text("digits", {}, flags);
  for (const char* name :
       {"--data", "--nprocs", "--devices", "--batch_size", "--global_batch_size", "--max_epochs", "--optim.lr",
        "--precision", "--run_name", "--resume", "--[no-]fresh", "--config", "--dry-run", "--help-all"}) {
    EXPECT_THAT(text, HasSubstr(fmt::format("  {} ", name)));
  }
  EXPECT_THAT(text, HasSubstr(fmt::format("--help-all lists all {} settings.", config_values({}).size())));
  EXPECT_EQ(text.find("--dist."), std::string::npos);
  EXPECT_LE(split(text, '\n').size(), 50U) << "a page";
}

TEST(HelpText, FitsTheTerminal) {
  const auto longest_line = [](const std::string& text) {
    std::size_t longest = 0;
    for (const std::string& line : split(text, '\n')) {
      longest = std::max(longest, line.size());
    }
    return longest;
  };
  EXPECT_LE(longest_line(help_text("digits", {})), 80U);
  EXPECT_LE(longest_line(help_all_text("digits", {})), 80U);
  for (const int width : {60, 72, 80, 100, 120}) {
    const std::string text = help_text("digits", {}, {}, width);
    EXPECT_LE(longest_line(text), static_cast<std::size_t>(width));
    EXPECT_EQ(text.find("(default:\n"), std::string::npos) << "a default stays in one piece";
    EXPECT_THAT(text, HasSubstr("(default: 0)"));
    EXPECT_LE(longest_line(help_all_text("digits", {}, {}, width)), static_cast<std::size_t>(width));
  }
  EXPECT_GT(longest_line(help_all_text("digits", {}, {}, 120)), 100U) << "and uses it";
  EXPECT_EQ(help_text("digits", {}, {}, 300), help_text("digits", {}, {}, 120)) << "but nobody reads longer lines";
}

TEST(PrintConfigText, ShowsValueAndOriginAndReadsBack) {
  std::int64_t hidden = 64;
  Flags flags;
  flags.add("hidden", &hidden, "width");
  const std::vector<std::string> args{"--optim.lr", "0.1", "--hidden", "8"};
  const Invocation invocation =
      parse_invocation({.batch_size = 32}, args,
                       Variables(std::map<std::string, std::string, std::less<>>{{"LOCKSTEP_CFG_SEED", "7"}}), flags);
  const std::string text = print_config_text(invocation, flags);
  EXPECT_THAT(text, testing::ContainsRegex("lr = 0.1 +# flag\n"));
  EXPECT_THAT(text, testing::ContainsRegex("seed = 7 +# environment LOCKSTEP_CFG_SEED\n"));
  EXPECT_THAT(text, testing::ContainsRegex("batch_size = 32 +# program\n"));
  EXPECT_THAT(text, testing::ContainsRegex("max_steps = 0 +# default\n"));
  EXPECT_THAT(text, testing::ContainsRegex("\n\\[program\\]\nhidden = 8 +# flag\n"));
}

TEST(FieldTable, GivesEveryFieldItsOwnVariable) {
  std::set<std::string> variables;
  for (const auto& [name, value] : config_values({})) {
    EXPECT_TRUE(variables.insert(variable_name("LOCKSTEP_CFG_", name)).second) << variable_name("LOCKSTEP_CFG_", name);
  }
  EXPECT_TRUE(variables.contains("LOCKSTEP_CFG_OPTIM_MAX_GRAD_NORM"));
}

TEST(FieldTable, MarksFieldsOnWhichRanksAgree) {
  EXPECT_TRUE(ranks_agree_on("global_batch_size"));
  EXPECT_TRUE(ranks_agree_on("optim.lr"));
  for (const char* name :
       {"devices", "run_dir", "resume", "fresh", "data.workers", "report.progress", "no.such_field"}) {
    EXPECT_FALSE(ranks_agree_on(name)) << name;
  }
}

TEST(ConfigurationDocs, MatchTheFieldTable) {
  expect_generated("docs/configuration.md", "src/config/fields.h", configuration_markdown());
}

}  // namespace
}  // namespace lockstep
