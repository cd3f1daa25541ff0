// The records of a run that is resumed: in one chain with those of before, or in a file of their own.
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/file_system.h>

#include "base/mapped.h"
#include "report/record_comparison.h"
#include "storage/names.h"
#include "support/captured_stderr.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

struct Part {
  std::int64_t until = 0;  // steps
  int ranks = 2;
  std::int64_t record = 1;
  double lr = 0.1;
};

class Records : public testing::Test {
 protected:
  /// Trains with a global batch of 8 samples, and saves after every third step. Returns the log.
  std::string train(const std::string& name, const Part& part) {
    TrainConfig config{.max_epochs = 0, .max_steps = part.until, .batch_size = 8 / part.ranks, .run_dir = run(name)};
    config.compute_setup = ComputeSetup::cpu;
    config.checkpoint.every_epochs = 0;
    config.checkpoint.every_steps = 3;
    config.checkpoint.keep_all = true;
    config.report.record = part.record;
    const Plan plan = plan_for(part.ranks, config);
    CapturedStderr captured;
    thread_world(part.ranks, [&](World& world) {
      TinyTask task(sgd({.lr = part.lr}));
      DataLoader data(tiny_data(40), plan.loader, world);
      Trainer(plan, world).fit(task, data);
    });
    return captured.text();
  }

  void forget_checkpoint(const std::string& name, std::int64_t step) {
    const auto removed = fs::remove_all(run(name) / "checkpoints" / step_name(step));
    ASSERT_GT(removed, 0U) << step;
  }

  std::vector<std::int64_t> steps(const std::string& name, int rank) {
    return mapped(read_records(real_file_system(), file(name, rank)).entries,
                  [](const auto& entry) { return entry.record.step; });
  }

  RecordChain chain(const std::string& name) { return chain_of(read_run_records(real_file_system(), run(name))); }
  fs::path run(const std::string& name) const { return dir_.path() / name; }
  fs::path file(const std::string& name, int rank) const { return run(name) / record_file_name(rank); }

  TempDir dir_;
};

TEST_F(Records, OfAResumedRunAreOneChain) {
  train("straight", {.until = 12});
  train("parts", {.until = 5});
  EXPECT_THAT(train("parts", {.until = 12}), Not(HasSubstr("records-")));
  EXPECT_EQ(chain("parts").steps, 12);
  EXPECT_EQ(chain("parts").hash, chain("straight").hash);

  train("older", {.until = 8});
  forget_checkpoint("older", 8);
  forget_checkpoint("older", 6);
  EXPECT_THAT(train("older", {.until = 12}), Not(HasSubstr("records-")));
  EXPECT_EQ(chain("older").hash, chain("straight").hash);
}

TEST_F(Records, MayLeaveOutAPartOfTheRun) {
  train("run", {.until = 4});
  EXPECT_THAT(train("run", {.until = 8, .record = 0}), Not(HasSubstr("records-")));
  EXPECT_THAT(train("run", {.until = 12}), Not(HasSubstr("records-")));
  EXPECT_THAT(steps("run", 1), ElementsAre(1, 2, 3, 4, 9, 10, 11, 12));
}

// The steps 4 to 6 that are in the checkpoint are others than those in the file.
TEST_F(Records, OfStepsThatWereRepeatedWithoutRecordsDoNotCount) {
  train("run", {.until = 6});
  forget_checkpoint("run", 6);
  train("run", {.until = 8, .record = 0});
  EXPECT_THAT(train("run", {.until = 10}),
              HasSubstr("records-0.bin: its records from step 4 on did not lead to the checkpoint of step 8"));
  EXPECT_THAT(steps("run", 0), ElementsAre(1, 2, 3, 9, 10));
  EXPECT_THAT(steps("run", 1), ElementsAre(1, 2, 3, 9, 10));
}

TEST_F(Records, OfOtherNumbersOfRanksAreOneChain) {
  for (const Part& part : {Part{.until = 4, .ranks = 4}, {.until = 7, .ranks = 2}, {.until = 12, .ranks = 4}}) {
    EXPECT_THAT(train("run", part), Not(HasSubstr("records-"))) << part.until;
  }
  EXPECT_EQ(chain("run").steps, 12);
  EXPECT_THAT(steps("run", 3), ElementsAre(1, 2, 3, 4, 8, 9, 10, 11, 12));
}

TEST_F(Records, OfADamagedFileAreSetAside) {
  train("run", {.until = 5});
  std::string bytes = read_file(real_file_system(), file("run", 1));
  bytes[2 * 64 + 8] ^= 1;  // of step 2
  write_file(real_file_system(), file("run", 1), bytes);
  const std::string log = train("run", {.until = 8});
  EXPECT_THAT(log, HasSubstr("[rank1]: warning: " + file("run", 1).string() +
                             " record 2: its checksum does not match, and more records follow it: moved it to "
                             "records-1.bin.1"));
  EXPECT_EQ(read_file(real_file_system(), file("run", 1).string() + ".1"), bytes);
  EXPECT_THAT(steps("run", 1), ElementsAre(6, 7, 8));
  EXPECT_EQ(steps("run", 0).size(), 8U) << "that of rank 0 is good";
  EXPECT_THAT(train("run", {.until = 10}), Not(HasSubstr("records-"))) << "the new file is continued";
}

TEST_F(Records, OfAnotherTrainingAreSetAside) {
  train("run", {.until = 5});
  train("other", {.until = 5, .lr = 0.05});
  for (const int rank : {0, 1}) {
    fs::copy_file(file("other", rank), file("run", rank), fs::copy_options::overwrite_existing);
  }
  const std::string log = train("run", {.until = 8});
  for (const char* name : {"records-0.bin", "records-1.bin"}) {
    EXPECT_THAT(log, HasSubstr(std::string(name) +
                               ": its records up to step 5 are not those that led to the checkpoint: moved it to " +
                               name + ".1"));
  }
  EXPECT_THAT(steps("run", 0), ElementsAre(6, 7, 8));
}

TEST_F(Records, ThatAreMissingAreNamedOnce) {
  train("run", {.until = 5, .ranks = 4});
  fs::remove(file("run", 0));
  fs::remove(file("run", 2));
  const std::string log = train("run", {.until = 8, .ranks = 4});
  const std::string line = " has no records-0.bin, records-2.bin with the steps up to 5: lockstep compare begins after";
  const auto found = log.find(line);
  ASSERT_NE(found, std::string::npos) << log;
  EXPECT_EQ(log.find(line, found + 1), std::string::npos);
  EXPECT_THAT(steps("run", 0), ElementsAre(6, 7, 8));
  EXPECT_EQ(steps("run", 1).size(), 8U);
}

}  // namespace
}  // namespace lockstep
