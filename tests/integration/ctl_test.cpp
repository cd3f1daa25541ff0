// `lockstep ctl` and a training that runs.
#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/runs.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

class Ctl : public testing::Test {
 protected:
  std::filesystem::path run() const { return dir_.path() / "run"; }
  std::vector<std::string> train(const std::string& ranks) const {
    return command(TRAIN_PROGRAM, run(),
                   {"--nprocs", ranks, "--max_epochs", "100000", "--work_ms", "20", "--report.every_steps", "1000000",
                    "--validate.at_start", "true", "--validate.every_epochs", "0", "--checkpoint.every_epochs", "0",
                    "--data.workers", "0"});
  }
  Process::Result ctl(const std::string& what) const {
    return run_program({LOCKSTEP_CLI, "ctl", run().string(), what});
  }

  TempDir dir_;
};

TEST_F(Ctl, SavesReportsValidatesAndStopsARunningTraining) {
  for (const std::string ranks : {"1", "2"}) {
    std::vector<std::string> words = train(ranks);
    if (ranks == "2") {
      words.emplace_back("--fresh");  // then the rank holds the run, too
    }
    Process training(words);
    ASSERT_TRUE(training.wait_for("val_loss")) << training.err();
    for (const std::string what : {"report", "validate", "save", "stop"}) {  // each in a later step than the one before
      const auto told = ctl(what);
      EXPECT_EQ(told.code, 0) << told.err;
      EXPECT_EQ(told.out, what + ": taken\n");
      if (what == "save") {
        EXPECT_EQ(metric(run(), "loss").size(), 1U);
        EXPECT_EQ(metric(run(), "val_loss").size(), 2U) << "at the start and on request";
      }
    }
    const auto ended = training.wait();
    EXPECT_EQ(ended.code, 75) << ended.err;
    EXPECT_THAT(ended.out + ended.err, HasSubstr("lockstep ctl, saved in"));
    int checkpoints = 0;
    for (const auto& entry : std::filesystem::directory_iterator(run() / "checkpoints")) {
      checkpoints += entry.is_directory() && !entry.is_symlink() ? 1 : 0;
    }
    EXPECT_EQ(checkpoints, 2) << "the one that was asked for, and that of the end";

    const auto nobody = ctl("stop");
    EXPECT_EQ(nobody.code, 65);
    EXPECT_THAT(nobody.err, HasSubstr("no training runs in"));
    std::filesystem::remove_all(run());
  }
}

TEST_F(Ctl, ValidationsOnRequestDecideNothing) {
  // 26 steps per epoch. No loss is so much better than the first one.
  Process training(
      command(TRAIN_PROGRAM, run(),
              {"--nprocs", "1", "--max_epochs", "1000", "--work_ms", "20", "--early_stop.metric", "val_loss",
               "--early_stop.min_delta", "1000", "--early_stop.patience", "10", "--data.workers", "0"}));
  ASSERT_TRUE(training.wait_for("| val_loss")) << training.err();
  EXPECT_EQ(ctl("validate").out, "validate: taken\n");
  EXPECT_EQ(ctl("validate").out, "validate: taken\n");
  const auto ended = training.wait();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out + ended.err, HasSubstr("at step 286, epoch 11: val_loss did not improve on"));
}

TEST_F(Ctl, CallsTheProgramsOwnCommandOnAllRanksAtOneStep) {
  for (const int ranks : {1, 2}) {
    Process training(train(std::to_string(ranks)));
    ASSERT_TRUE(training.wait_for("val_loss")) << training.err();
    const auto unknown = ctl("pause");
    EXPECT_EQ(unknown.code, 2);
    EXPECT_THAT(unknown.err, HasSubstr("ctl: found pause, expected stop, save, validate, report or sample"));
    EXPECT_EQ(ctl("../../sample").code, 2);
    EXPECT_EQ(ctl("sample").out, "sample: taken\n");
    EXPECT_EQ(ctl("stop").code, 0);
    const std::string text = training.wait().err;
    std::smatch found;
    ASSERT_TRUE(std::regex_search(text, found, std::regex("rank 0 samples at step ([0-9]+)"))) << text;
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_THAT(text, HasSubstr("rank " + std::to_string(rank) + " samples at step " + found[1].str()));
    }
    EXPECT_EQ(std::regex_replace(text, std::regex("samples at step"), "").size(),
              text.size() - static_cast<std::size_t>(ranks) * std::string("samples at step").size())
        << "once per rank";
    std::filesystem::remove_all(run());
  }
}

TEST_F(Ctl, NamesWhatIsWrong) {
  EXPECT_THAT(ctl("stop").err, HasSubstr("contains no run"));
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "ctl"}).code, 2);
  EXPECT_THAT(run_program({LOCKSTEP_CLI, "ctl", "--help"}).out, HasSubstr("usage: lockstep ctl RUN"));
}

}  // namespace
}  // namespace lockstep
