// A rank dies; the run restarts automatically and ends with the same result as without the failure.
#include <cmath>
#include <csignal>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "faults/undisturbed.h"
#include "support/python.h"
#include "support/requirements.h"
#include "support/sweep.h"
#include "support/terminal.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

class Restart : public Undisturbed {
 protected:
  std::vector<std::string> two_under_torchrun(const std::vector<std::string>& flags) const {
    return under_torchrun(LIBTORCH_DIR, 2, flags, program(run()));
  }

  const Process::Environment threads_{{"OMP_NUM_THREADS", "1"}};  // as our launcher sets for two ranks on two cores
};

/// The step in the last line of `text` that `line` matches (its first group), or -1.
int last_step(const std::string& text, const char* line) {
  int step = -1;
  const std::regex pattern(line);
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at) {
    step = std::stoi((*at)[1]);
  }
  return step;
}

/// True if the ranks that run now have validated at a later step than the one in which the last rank died.
bool is_past_the_last_death(const std::string& text) {
  return last_step(text, R"(step (\d+) [^\n]* val_loss )") > last_step(text, R"(died of signal [^\n]* at step (\d+))");
}

TEST_F(Restart, AfterRanksKilledAtRandomTimesEndsWithTheSameBytes) {
  Sweep sweep("killed ranks");
  const int wanted = rounds(5, 300);
  int landed = 0;
  while (landed < wanted) {
    std::filesystem::remove_all(run());
    Process process(two_ranks(run(), {"--dist.max_restarts", "100"}));
    ASSERT_TRUE(process.wait_for("checkpoints")) << process.err();
    int kills = 0;
    while (landed < wanted && !process.ended_within(milliseconds(sweep.between(500, 1500)))) {
      const auto ranks = Process::ranks_of(process.pid());
      // Two deaths at the same step count as a deterministic failure.
      if (ranks.empty() || noted(run(), "restart") < kills || (kills > 0 && !is_past_the_last_death(process.err()))) {
        continue;
      }
      kill(ranks[static_cast<std::size_t>(sweep.between(0, static_cast<int>(ranks.size()) - 1))], SIGKILL);
      ++kills;
      ++landed;
    }
    const auto result = process.wait();
    const bool kept = result.code == 0 && ends_like_the_straight_run();
    EXPECT_TRUE(kept) << result.err;
    EXPECT_LE(noted(run(), "restart"), kills);
    for (int i = 0; i < kills; ++i) {
      sweep.count(kept);
    }
  }
  EXPECT_GE(sweep.points(), wanted);
}

// The straight run has neither.
TEST_F(Restart, OfAShardedRunOrAStaticGraphEndsWithTheSameBytes) {
  for (const std::string way : {"--dist.shard_optimizer", "--dist.static_graph"}) {
    SCOPED_TRACE(way);
    std::filesystem::remove_all(run());
    Process process(two_ranks(run(), {"--dist.max_restarts", "3", way}));
    ASSERT_TRUE(process.wait_for("step 100 ")) << process.err();
    kill(Process::ranks_of(process.pid()).at(0), SIGKILL);
    const auto result = process.wait();
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(noted(run(), "restart"), 1);
    EXPECT_TRUE(ends_like_the_straight_run());
  }
}

// Each attempt fails with the same text, at its own eighth step.
TEST_F(Restart, OfALoopByHandGoesOnWhileItAdvances) {
  const auto fails_at = [&](const char* step) {
    return run_program(
        command(TRAIN_PROGRAM, dir_.path() / step,
                {"--by_hand", "--nprocs", "2", "--max_epochs", "1", "--checkpoint.every_steps", "5", "--fail_in",
                 "forward", "--fail_rank", "1", "--fail_step", step, "--dist.max_restarts", "1"}));
  };
  const auto advances = fails_at("7");
  EXPECT_EQ(advances.code, 0) << advances.err;
  EXPECT_THAT(advances.err, HasSubstr("failed at step 7 in forward"));
  EXPECT_THAT(advances.err, HasSubstr("failed at step 12 in forward"));
  EXPECT_THAT(advances.err, HasSubstr("restart 2 now (0 left without progress)"));
  const auto stays = fails_at("3");  // control
  EXPECT_EQ(stays.code, 1);
  EXPECT_THAT(stays.err, HasSubstr("not restarted: deterministic failure: the same twice in a row at step 3"));
}

// The batch of 8 does not fit after some steps, nor does that of 4. The data and the losses stay; the last checkpoint
// has the batch size that fitted.
TEST_F(Restart, WithHalfTheMicroBatchGoesOnWhenMemoryRunsOut) {
  const std::vector<std::string> same{
      "--max_epochs", "4", "--checkpoint.every_steps", "3", "--report.every_steps", "1", "--fp64", "--dropout", "0",
      "--batch_size", "8", "--checkpoint.keep_last",   "3"};
  const auto train = [&](const std::string& name, const std::vector<std::string>& more) {
    return run_program(command(TRAIN_PROGRAM, dir_.path() / name, with(same, more)));
  };
  for (const char* ranks : {"1", "2"}) {
    const std::string straight = std::string("straight") + ranks;
    const std::string halved = std::string("halved") + ranks;
    const std::vector<std::string> short_of_memory{
        "--nprocs", ranks,       "--fits",  "2",           "--fail_step",
        "7",        "--fail_in", "nowhere", "--fail_rank", std::string(ranks) == "1" ? "0" : "1"};
    ASSERT_EQ(train(straight, {"--nprocs", ranks}).code, 0);
    const auto result = train(halved, with(short_of_memory, {"--memory.halve_batch"}));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(noted(dir_.path() / halved, "restart"), 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr("restart 1 now, with half the micro-batch: rank "));
    EXPECT_THAT(result.err, HasSubstr("= 2 per rank x 4 micro-batches")) << "the table of the last start";
    const auto wanted = metric(dir_.path() / straight, "loss");
    const auto got = metric(dir_.path() / halved, "loss");
    ASSERT_EQ(got.size(), wanted.size());
    for (const auto& [step, loss] : wanted) {
      EXPECT_NEAR(got.at(step), loss, 1e-10 * std::abs(loss)) << ranks << " ranks, step " << step;
    }
    // Control: nobody asked for it.
    const auto refused = train(std::string("refused") + ranks, short_of_memory);
    EXPECT_EQ(refused.code, 1);
    EXPECT_THAT(refused.err, HasSubstr("--memory.halve_batch"));
  }
}

TEST_F(Restart, WithHalfTheMicroBatchGoesOnUnderLockstepRun) {
  const auto program =
      command(TRAIN_PROGRAM, run(),
              {"--max_epochs", "4", "--checkpoint.every_steps", "3", "--batch_size", "8", "--fits", "2", "--fail_step",
               "7", "--fail_in", "nowhere", "--fail_rank", "1", "--memory.halve_batch"});
  const auto result = run_program(with({LOCKSTEP_CLI, "run", "--nproc-per-node", "2", "--"}, program));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("restart 2 now, with half the micro-batch: rank 1"));
  EXPECT_THAT(result.out + result.err, HasSubstr("= 2 per rank x 4 micro-batches")) << "the table of the last start";
  EXPECT_THAT(result.err, testing::Not(HasSubstr("has no effect")));
}

// One sample that does not fit ends the run.
TEST_F(Restart, WithHalfTheMicroBatchEndsAtASingleSample) {
  const auto result = run_program(command(TRAIN_PROGRAM, run(),
                                          {"--nprocs", "2", "--batch_size", "4", "--fail", "memory", "--fail_in",
                                           "forward", "--fail_step", "0", "--memory.halve_batch"}));
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_EQ(noted(run(), "restart"), 2);
  EXPECT_THAT(result.err, HasSubstr("a single sample needs too much memory"));
}

// Control: without restarts, the same kill ends the run.
TEST_F(Restart, IsAskedFor) {
  Process process(two_ranks(run()));
  ASSERT_TRUE(process.wait_for("step 100 ")) << process.err();
  kill(Process::ranks_of(process.pid()).at(1), SIGKILL);
  EXPECT_EQ(process.wait().code, 137);
  EXPECT_FALSE(ends_like_the_straight_run());
}

TEST_F(Restart, ByTorchrunEndsWithTheSameBytes) {
  LOCKSTEP_REQUIRE(Requirements().that(!find_torchrun(LIBTORCH_DIR).empty(), "no torchrun beside the LibTorch"));
  // --fresh applies once, for any number of restarts.
  Process process(with(two_under_torchrun({"--max-restarts", "2"}), {"--fresh"}), threads_);
  ASSERT_TRUE(process.wait_for("step 100 ")) << process.err();
  kill(Process::ranks_of(process.pid()).at(1), SIGKILL);
  const auto result = process.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("resuming from step"));
  EXPECT_TRUE(ends_like_the_straight_run());
}

// torchrun knows nothing of the request, and starts ranks again that ended with 75.
TEST_F(Restart, ByTorchrunFollowsAStopByLockstepCtl) {
  LOCKSTEP_REQUIRE(Requirements().that(!find_torchrun(LIBTORCH_DIR).empty(), "no torchrun beside the LibTorch"));
  Process process(with(two_under_torchrun({"--max-restarts", "2"}), {"--work_ms", "5"}), threads_);
  ASSERT_TRUE(process.wait_for("step 100 ")) << process.err();
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "ctl", run().string(), "stop"}).code, 0) << "lockstep ctl RUN stop";
  const auto result = process.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("lockstep ctl, saved in"));
  EXPECT_THAT(result.err, HasSubstr("resuming from step"));
  EXPECT_TRUE(ends_like_the_straight_run());
}

// The terminal sends the signal to torchrun and to its ranks, torchrun sends it to the ranks again.
TEST_F(Restart, ByAPersonAfterCtrlCUnderTorchrunEndsWithTheSameBytes) {
  LOCKSTEP_REQUIRE(Requirements().that(!find_torchrun(LIBTORCH_DIR).empty(), "no torchrun beside the LibTorch"));
  OnTerminal terminal(two_under_torchrun({}), {{"OMP_NUM_THREADS", "1"}});
  ASSERT_TRUE(terminal.read_until("epoch 5")) << terminal.screen;
  terminal.type("\x03");
  ASSERT_TRUE(terminal.read_until("")) << terminal.screen;
  EXPECT_NE(terminal.wait(), 0);
  EXPECT_THAT(terminal.screen, HasSubstr("run the same command again to continue"));
  const auto result = run_program(two_under_torchrun({}), threads_);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("resuming from step"));
  EXPECT_TRUE(ends_like_the_straight_run());
}

}  // namespace
}  // namespace lockstep
