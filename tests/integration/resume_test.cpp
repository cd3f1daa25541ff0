// A run that is stopped or killed at any time and resumed ends with the same bytes as an uninterrupted run.
#include <csignal>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/runs.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

const std::vector<std::string> kTwoRanks{
    "--nprocs", "2", "--max_epochs", "6", "--data.workers", "2", "--checkpoint.every_steps", "4"};

class Resume : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    straight_dir_ = new TempDir();
    const auto result = run_program(command(TRAIN_PROGRAM, straight_dir_->path() / "run", kTwoRanks));
    ASSERT_EQ(result.code, 0) << result.err;
    straight_ = final_state(straight_dir_->path() / "run");
    ASSERT_EQ(straight_.size(), 5U);  // name, model, optimizer and two generators
  }
  static void TearDownTestSuite() {
    delete straight_dir_;
    straight_dir_ = nullptr;
  }

  std::filesystem::path run() const { return dir_.path() / "run"; }
  std::vector<std::string> train() const { return command(TRAIN_PROGRAM, run(), kTwoRanks); }

  void expect_same_end() {
    const auto result = run_program(train());
    ASSERT_EQ(result.code, 0) << result.err;
    expect_same_state();
  }

  void expect_same_state() {
    const auto state = final_state(run());
    ASSERT_EQ(state.size(), straight_.size());
    for (const auto& [name, bytes] : straight_) {
      EXPECT_TRUE(state.at(name) == bytes) << name << " differs";
    }
  }

  TempDir dir_;
  static TempDir* straight_dir_;
  static std::map<std::string, std::string> straight_;
};
TempDir* Resume::straight_dir_ = nullptr;
std::map<std::string, std::string> Resume::straight_;

TEST_F(Resume, TwoStraightRunsAreEqualAndAnotherSeedIsNot) {
  expect_same_end();
  auto other = train();
  other.insert(other.end(), {"--run_dir", (dir_.path() / "other").string(), "--seed", "1"});
  ASSERT_EQ(run_program(other).code, 0);
  EXPECT_FALSE(final_state(dir_.path() / "other").at("model.safetensors") == straight_.at("model.safetensors"));
}

TEST_F(Resume, AfterCtrlC) {
  Process process(train());
  ASSERT_TRUE(process.wait_for("step 7 ")) << process.err();
  process.signal(SIGINT);
  const auto result = process.wait();
  EXPECT_EQ(result.code, 130) << result.err;
  EXPECT_THAT(result.err, HasSubstr("run the same command again to continue"));
  expect_same_end();
}

// All ranks fail at the same moment: it is saved there, not at the last save.
TEST_F(Resume, AfterAFailureOfAllRanksInAValidation) {
  const auto failed =
      run_program(with(train(), {"--fail", "throw", "--fail_rank=-1", "--fail_in", "validation", "--fail_step", "7",
                                 "--checkpoint.every_steps", "0", "--checkpoint.every_epochs", "0"}));
  EXPECT_EQ(failed.code, 1) << failed.err;
  EXPECT_THAT(failed.err, HasSubstr("cannot decode sample 4411"));
  EXPECT_THAT(failed.err, testing::ContainsRegex("step [1-9][0-9]* is saved in"));
  expect_same_end();
}

TEST_F(Resume, AfterTermination) {
  Process process(train());
  ASSERT_TRUE(process.wait_for("step 11 ")) << process.err();
  process.signal(SIGTERM);
  const auto result = process.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  expect_same_end();
}

/// The run still trains when its output has been read.
std::vector<std::string> slowly(std::vector<std::string> command) {
  command.insert(command.end(), {"--work_ms", "20"});
  return command;
}

TEST_F(Resume, AfterAKilledRankAtManySteps) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 4; ++trial) {
    const auto step = std::uniform_int_distribution<int>(1, 60)(random);
    const auto victim = static_cast<std::size_t>(trial % 2);
    SCOPED_TRACE("rank " + std::to_string(victim) + " killed after step " + std::to_string(step));
    std::filesystem::remove_all(run());
    // Two ranks have the same sums over Gloo and in shared memory, with which the run goes on.
    Process process(with(slowly(train()), {"--backend", trial < 2 ? "gloo" : "auto"}));
    ASSERT_TRUE(process.wait_for("step " + std::to_string(step) + " ")) << process.err();
    const auto ranks = Process::ranks_of(process.pid());
    ASSERT_EQ(ranks.size(), 2U);
    ASSERT_EQ(kill(ranks[victim], SIGKILL), 0);
    const auto result = process.wait();
    EXPECT_EQ(result.code, 137) << result.err;
    EXPECT_TRUE(Process::gone(ranks, std::chrono::seconds(0)));
    // The last thing printed names the rank and the signal.
    const auto last = result.err.substr(result.err.rfind("rank " + std::to_string(victim)));
    EXPECT_THAT(last, HasSubstr("signal 9"));
    EXPECT_LE(std::count(last.begin(), last.end(), '\n'), 5) << last;
    expect_same_end();
  }
}

TEST_F(Resume, ByItselfAfterEveryKilledRank) {
  auto restarting = train();
  restarting.insert(restarting.end(), {"--dist.max_restarts", "3", "--fresh"});  // fresh on the first attempt only
  Process process(slowly(restarting));
  for (const int step : {6, 15, 27}) {
    ASSERT_TRUE(process.wait_for("step " + std::to_string(step) + " ")) << process.err();
    const auto ranks = Process::ranks_of(process.pid());
    ASSERT_EQ(ranks.size(), 2U);
    kill(ranks[static_cast<std::size_t>(step % 2)], SIGKILL);
  }
  const auto result = process.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("\n3 restarts"));
  expect_same_state();
  const std::string events = read_text(run() / "events.jsonl");
  EXPECT_THAT(events, HasSubstr(R"("event":"failure")"));
  EXPECT_THAT(events, HasSubstr(R"("event":"restart")"));
  EXPECT_THAT(events, HasSubstr(R"("event":"goodput")"));
}

TEST_F(Resume, AfterAKilledSupervisor) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 3; ++trial) {
    const auto step = std::uniform_int_distribution<int>(1, 60)(random);
    SCOPED_TRACE("supervisor killed after step " + std::to_string(step));
    std::filesystem::remove_all(run());
    Process process(slowly(train()));
    ASSERT_TRUE(process.wait_for("step " + std::to_string(step) + " ")) << process.err();
    const auto ranks = Process::ranks_of(process.pid());
    ASSERT_EQ(ranks.size(), 2U);
    process.signal(SIGKILL);
    EXPECT_TRUE(Process::gone(ranks, std::chrono::seconds(1))) << "a rank outlived its supervisor";
    process.wait();
    expect_same_end();
  }
}

TEST_F(Resume, OfAFinishedRunSaysSo) {
  expect_same_end();
  const auto again = run_program(train());
  EXPECT_EQ(again.code, 0);
  EXPECT_THAT(again.err, HasSubstr("nothing to do: this run is finished"));
  EXPECT_THAT(again.err, Not(HasSubstr("resuming from")));
  EXPECT_THAT(again.err, HasSubstr("--max_epochs"));
  EXPECT_THAT(again.err, HasSubstr("--fresh"));
  EXPECT_THAT(again.err, Not(HasSubstr("use another --run_name")));
  const auto changed = run_program(with(train(), {"--optim.lr", "0.5"}));
  EXPECT_EQ(changed.code, 0);
  EXPECT_THAT(changed.err, HasSubstr("--optim.lr is 0.5 now"));
  EXPECT_THAT(changed.err, HasSubstr("use another --run_name to train with this"));
  expect_same_state();
}

TEST_F(Resume, OnAnotherNumberOfRanksKeepsTheGlobalBatch) {
  Process process(train());
  ASSERT_TRUE(process.wait_for("step 13 ")) << process.err();
  process.signal(SIGTERM);
  ASSERT_EQ(process.wait().code, 75);
  auto wider = train();
  wider.insert(wider.end(), {"--nprocs", "3", "--dropout", "0"});
  const auto result = run_program(wider);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the random generators get new seeds"));
  // 103 samples in steps of 8: 13 steps per epoch for any world size.
  EXPECT_EQ(newest_checkpoint(run()).filename().string(), "step-0000000078");
}

TEST_F(Resume, FreshKeepsTheOldRun) {
  expect_same_end();
  auto fresh = train();
  fresh.insert(fresh.end(), {"--fresh", "--max_epochs", "1"});
  const auto result = run_program(fresh);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(std::filesystem::exists(run().string() + ".1/checkpoints/step-0000000078"));
  EXPECT_EQ(newest_checkpoint(run()).filename().string(), "step-0000000013");
}

TEST_F(Resume, RefusesAnotherModel) {
  expect_same_end();
  const auto digits = run_program(command(std::string(EXAMPLES_DIR) + "/01_single_device", run(), {"20"}));
  EXPECT_EQ(digits.code, 65) << digits.err;
}

TEST_F(Resume, WarnsAboutAnotherHyperparameter) {
  Process process(train());
  ASSERT_TRUE(process.wait_for("step 5 ")) << process.err();
  process.signal(SIGTERM);
  ASSERT_EQ(process.wait().code, 75);
  auto other = train();
  other.insert(other.end(), {"--optim.lr", "0.002", "--max_epochs", "1"});
  const auto result = run_program(other);
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.err, HasSubstr("optim.lr is 0.002 now, 0 when"));
}

TEST_F(Resume, FromANamedCheckpointNeedsARunWithoutNewerOnes) {
  expect_same_end();
  const auto checkpoint = run() / "checkpoints" / "step-0000000076";
  ASSERT_TRUE(std::filesystem::exists(checkpoint));
  auto back = train();
  back.insert(back.end(), {"--resume", checkpoint.string()});
  const auto refused = run_program(back);
  EXPECT_EQ(refused.code, 65) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("has step 78 already"));
  back.insert(back.end(), {"--run_dir", (dir_.path() / "branch").string()});
  const auto branched = run_program(back);
  EXPECT_EQ(branched.code, 0) << branched.err;
  EXPECT_TRUE(final_state(dir_.path() / "branch") == straight_);
  EXPECT_TRUE(std::filesystem::exists(checkpoint)) << "it belongs to another run";
}

TEST_F(Resume, LastNeedsACheckpoint) {
  auto required = train();
  required.insert(required.end(), {"--resume", "last"});
  const auto result = run_program(required);
  EXPECT_EQ(result.code, 65) << result.err;
  EXPECT_THAT(result.err, HasSubstr("--resume last: no checkpoint"));
}

// A checkpoint of two ranks with a setting that no longer exists.
TEST_F(Resume, GoesOnFromAnOldCheckpointWithoutAWordAboutASettingThatIsGone) {
  for (const char* ranks : {"2", "1"}) {
    const auto result =
        run_program(command(TRAIN_PROGRAM, dir_.path() / ranks,
                            {"--nprocs", ranks, "--max_epochs", "0", "--max_steps", "12", "--batch_size", "8",
                             "--global_batch_size", "16", "--resume", GOLDEN_CHECKPOINT}));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("step 12 "));
    EXPECT_THAT(result.err, testing::Not(HasSubstr("strategy")));
  }
}

}  // namespace
}  // namespace lockstep
