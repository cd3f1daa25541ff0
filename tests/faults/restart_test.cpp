// A rank dies, the run starts again by itself, and ends as if nothing had happened.
#include <algorithm>
#include <csignal>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/python.h"
#include "support/requirements.h"
#include "support/runs.h"
#include "support/sweep.h"
#include "support/terminal.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

const std::vector<std::string> kFlags{"--max_epochs",         "40", "--checkpoint.every_steps", "50",
                                      "--report.every_steps", "50", "--data.workers",           "2"};

class Restart : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    straight_dir_ = new TempDir();
    auto straight = command(TRAIN_PROGRAM, straight_dir_->path() / "run", kFlags);
    straight.insert(straight.end(), {"--nprocs", "2"});
    const auto result = run_program(straight);
    ASSERT_EQ(result.code, 0) << result.err;
  }
  static void TearDownTestSuite() {
    delete straight_dir_;
    straight_dir_ = nullptr;
  }

  std::filesystem::path run() const { return dir_.path() / "run"; }
  std::vector<std::string> program() const { return command(TRAIN_PROGRAM, run(), kFlags); }
  std::vector<std::string> under_torchrun(const std::vector<std::string>& flags) const {
    std::vector<std::string> words{find_torchrun(LIBTORCH_DIR), "--standalone", "--no-python", "--nproc-per-node", "2"};
    words.insert(words.end(), flags.begin(), flags.end());
    const auto rest = program();
    words.insert(words.end(), rest.begin(), rest.end());
    return words;
  }
  bool ends_like_the_straight_run() const { return final_state(run()) == final_state(straight_dir_->path() / "run"); }
  int restarts_noted() const {
    std::ifstream events(run() / "events.jsonl");
    int found = 0;
    for (std::string line; std::getline(events, line);) {
      found += line.find("\"event\":\"restart\"") != std::string::npos ? 1 : 0;
    }
    return found;
  }

  TempDir dir_;
  const Process::Environment threads_{{"OMP_NUM_THREADS", "1"}};  // what our launcher gives two ranks on two cores
  static TempDir* straight_dir_;
};
TempDir* Restart::straight_dir_ = nullptr;

TEST_F(Restart, AfterRanksKilledAtRandomTimesEndsWithTheSameBytes) {
  Sweep sweep("killed ranks");
  const int wanted = rounds(5);
  int landed = 0;
  while (landed < wanted) {
    std::filesystem::remove_all(run());
    auto words = program();
    words.insert(words.end(), {"--nprocs", "2", "--dist.max_restarts", "100"});
    Process process(words);
    ASSERT_TRUE(process.wait_for("checkpoints")) << process.err();
    int kills = 0;
    while (landed < wanted && !process.ended_within(milliseconds(sweep.between(500, 1500)))) {
      const auto ranks = Process::ranks_of(process.pid());
      if (ranks.empty()) {
        continue;  // between two attempts
      }
      kill(ranks[static_cast<std::size_t>(sweep.between(0, static_cast<int>(ranks.size()) - 1))], SIGKILL);
      ++kills;
      ++landed;
    }
    const auto result = process.wait();
    const bool kept = result.code == 0 && ends_like_the_straight_run();
    EXPECT_TRUE(kept) << result.err;
    EXPECT_LE(restarts_noted(), kills);
    for (int i = 0; i < kills; ++i) {
      sweep.count(kept);
    }
  }
  EXPECT_GE(sweep.points(), wanted);
}

// The control: without restarts the same kill ends the run.
TEST_F(Restart, IsAskedFor) {
  auto words = program();
  words.insert(words.end(), {"--nprocs", "2"});
  Process process(words);
  ASSERT_TRUE(process.wait_for("step 100 ")) << process.err();
  kill(Process::ranks_of(process.pid()).at(1), SIGKILL);
  EXPECT_EQ(process.wait().code, 137);
  EXPECT_FALSE(ends_like_the_straight_run());
}

TEST_F(Restart, ByTorchrunEndsWithTheSameBytes) {
  LOCKSTEP_REQUIRE(Requirements().that(!find_torchrun(LIBTORCH_DIR).empty(), "no torchrun beside the LibTorch"));
  Process process(under_torchrun({"--max-restarts", "2"}), threads_);
  ASSERT_TRUE(process.wait_for("step 100 ")) << process.err();
  kill(Process::ranks_of(process.pid()).at(1), SIGKILL);
  const auto result = process.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("resuming from step"));
  EXPECT_TRUE(ends_like_the_straight_run());
}

// The terminal sends the signal to torchrun and to its ranks, torchrun sends it to the ranks again.
TEST_F(Restart, ByAPersonAfterCtrlCUnderTorchrunEndsWithTheSameBytes) {
  LOCKSTEP_REQUIRE(Requirements().that(!find_torchrun(LIBTORCH_DIR).empty(), "no torchrun beside the LibTorch"));
  OnTerminal terminal(under_torchrun({}), {{"OMP_NUM_THREADS", "1"}});
  ASSERT_TRUE(terminal.read_until("epoch 5")) << terminal.screen;
  terminal.type("\x03");
  ASSERT_TRUE(terminal.read_until("")) << terminal.screen;
  EXPECT_NE(terminal.wait(), 0);
  EXPECT_THAT(terminal.screen, HasSubstr("run the same command again to go on"));
  const auto result = run_program(under_torchrun({}), threads_);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("resuming from step"));
  EXPECT_TRUE(ends_like_the_straight_run());
}

}  // namespace
}  // namespace lockstep
