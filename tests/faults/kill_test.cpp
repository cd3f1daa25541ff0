// Ranks, launchers or both are killed; the same command, started again, loses nothing.
#include <csignal>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "faults/undisturbed.h"
#include "support/sweep.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

class Killed : public Undisturbed {
 protected:
  /// Kills the launcher and the ranks `also` at a moment of a run. True: no process was left a second later.
  bool kill_launch(const std::vector<std::size_t>& also, milliseconds moment) {
    Process process(two_ranks(run()));
    EXPECT_TRUE(process.wait_for("checkpoints")) << process.err();  // the start-up table
    process.ended_within(moment);
    const auto ranks = Process::ranks_of(process.pid());
    process.signal(SIGKILL);
    for (const std::size_t rank : also) {
      if (rank < ranks.size()) {
        kill(ranks[rank], SIGKILL);
      }
    }
    const int code = process.wait().code;
    landed_ += code == 137 ? 1 : 0;
    return (code == 137 || code == 0) && Process::gone(ranks, milliseconds(1000));
  }

  int landed_ = 0;
};

// With and without one of the ranks, including rank 0.
TEST_F(Killed, LaunchersLeaveNobodyAndTheRunGoesOn) {
  Sweep sweep("killed launchers");
  const std::vector<std::vector<std::size_t>> beside{{}, {0}, {1}};
  const int wanted = rounds(6);
  for (int trial = 0; trial < wanted; ++trial) {
    const auto& also = beside[static_cast<std::size_t>(trial) % beside.size()];
    const bool gone = kill_launch(also, milliseconds(sweep.between(300, 1700)));
    EXPECT_TRUE(gone) << "a rank survived its launcher";
    // Sometimes several kills before the run may finish.
    bool kept = true;
    if (sweep.between(0, 2) == 0 || trial + 1 == wanted) {
      const auto result = run_program(two_ranks(run()));
      kept = result.code == 0 && ends_like_the_straight_run();
      EXPECT_TRUE(kept) << result.err;
      std::filesystem::remove_all(run());
    }
    sweep.count(gone && kept);
  }
  EXPECT_EQ(sweep.points(), wanted);
  EXPECT_GE(landed_, wanted / 2) << "most came after the end of the run: the sweep shows nothing";
}

// Control: the test would detect a rank that a stopped relative keeps alive.
TEST_F(Killed, SurvivorsWouldBeSeen) {
  const Process survivor({"sleep", "1000"});
  EXPECT_FALSE(Process::gone({survivor.pid()}, milliseconds(200)));
}

TEST_F(Killed, TwoRanksInAMomentAreOneRestart) {
  Sweep sweep("two ranks at once");
  const int wanted = rounds(3, 30);
  for (int trial = 0; trial < wanted; ++trial) {
    std::filesystem::remove_all(run());
    Process process(two_ranks(run(), {"--dist.max_restarts", "3", "--backend", trial % 2 == 0 ? "auto" : "gloo"}));
    ASSERT_TRUE(process.wait_for("checkpoints")) << process.err();
    process.ended_within(milliseconds(sweep.between(500, 1700)));
    for (const pid_t rank : Process::ranks_of(process.pid())) {
      kill(rank, SIGKILL);
    }
    const auto result = process.wait();
    const bool kept = result.code == 0 && ends_like_the_straight_run() && noted(run(), "restart") <= 1;
    EXPECT_TRUE(kept) << result.err;
    sweep.count(kept);
  }
  EXPECT_EQ(sweep.points(), wanted);
}

}  // namespace
}  // namespace lockstep
