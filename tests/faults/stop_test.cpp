// A run is stopped at any time, by any signal to any process: all ranks end at the same step, and nothing is lost.
#include <csignal>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/runs.h"
#include "support/slurm_task.h"
#include "support/sweep.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kLongestWait = 1500;  // ms; includes start, training, validation and saves

class Stop : public testing::Test {
 protected:
  static std::vector<std::string> flags(const TempDir& dir) {
    return {"--nprocs",
            "2",
            "--max_epochs",
            "40",
            "--checkpoint.every_steps",
            "50",
            "--data.workers",
            "2",
            "--ledger",
            dir.path().string(),
            "--report.every_steps",
            "100"};
  }
  std::vector<std::string> train() const { return command(TRAIN_PROGRAM, run(), flags(dir_)); }
  std::filesystem::path run() const { return dir_.path() / "run"; }

  /// The last step of a rank, as recorded by the rank.
  std::string last_step(int rank) const {
    std::ifstream in(dir_.path() / ("rank_" + std::to_string(rank) + ".txt"));
    std::string last;
    for (std::string line; std::getline(in, line);) {
      last = line.substr(0, line.find(':'));
    }
    return last;
  }

  TempDir dir_;
};

TEST_F(Stop, AtRandomTimesLosesNothing) {
  const TempDir straight_dir;
  auto straight = command(TRAIN_PROGRAM, straight_dir.path() / "run", flags(straight_dir));
  ASSERT_EQ(run_program(straight).code, 0);

  Sweep sweep("stop requests");
  // With saves and validations after every step, most requests arrive during one of them.
  const std::vector<std::vector<std::string>> emphases{
      {}, {"--checkpoint.every_steps", "1"}, {"--validate.every_steps", "1", "--backend", "gloo"}};
  const int wanted = rounds(8);
  int landed = 0;
  for (int trial = 0; trial < wanted; ++trial) {
    auto words = train();
    const auto& emphasis = emphases[static_cast<std::size_t>(trial) % emphases.size()];
    words.insert(words.end(), emphasis.begin(), emphasis.end());
    Process process(words);
    ASSERT_TRUE(process.wait_for("checkpoints"))
        << process.err();  // the start-up table: signals are handled from here on
    // The sweep varies this time, so there is no event to wait for.
    std::this_thread::sleep_for(milliseconds(sweep.between(0, kLongestWait)));
    const auto ranks = Process::ranks_of(process.pid());
    const int target = sweep.between(-1, static_cast<int>(ranks.size()) - 1);
    const int signal = sweep.between(0, 3) == 0 ? SIGUSR1 : SIGTERM;
    kill(target < 0 ? process.pid() : ranks[static_cast<std::size_t>(target)], signal);
    const auto result = process.wait(Process::Seconds(30));
    SCOPED_TRACE("signal " + std::to_string(signal) + " to " + (target < 0 ? "the supervisor" : "a rank") + "\n" +
                 result.err);
    const bool finished = result.code == 0;
    EXPECT_TRUE(result.code == 75 || finished) << result.code;
    EXPECT_EQ(last_step(0), last_step(1));
    sweep.count((result.code == 75 || finished) && last_step(0) == last_step(1));
    if (finished) {
      EXPECT_TRUE(final_state(run()) == final_state(straight_dir.path() / "run"));
      std::filesystem::remove_all(run());
    } else {
      ++landed;
    }
  }
  EXPECT_EQ(sweep.points(), wanted);
  EXPECT_GE(landed, wanted / 2) << "most requests came after the end of the run: the sweep shows nothing";
  ASSERT_EQ(run_program(train()).code, 0);
  EXPECT_TRUE(final_state(run()) == final_state(straight_dir.path() / "run"));
}

// The destructors of libraries take a while, and a job that is done must not count as failed because its time ends
// then.
TEST_F(Stop, AfterTheRunLeavesItsExitCode) {
  for (const char* ranks : {"1", "2"}) {
    const auto result =
        run_program(command(TRAIN_PROGRAM, run() / ranks, {"--nprocs", ranks, "--max_epochs", "0", "--max_steps", "2"}),
                    {{"TRAIN_PROGRAM_GETS_STOPS_AT_EXIT", "1"}});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("finished at step 2"));
    EXPECT_THAT(result.err, testing::EndsWith("gets stops at exit\n")) << "the launcher, too";
  }
}

// Of a Trainer that has its own plan and was not given the requests of the run; the first of two trainings has ended.
TEST_F(Stop, EndsATrainingWithAPlanOfItsOwn) {
  for (const char* ranks : {"1", "2"}) {
    std::vector<std::string> words = command(
        TRAIN_PROGRAM, run() / ranks, {"--nprocs", ranks, "--max_epochs", "0", "--max_steps", "20", "--stops", "1"});
    std::vector<std::string> stopped = words;
    stopped.insert(stopped.end(), {"--fail", "term", "--fail_in", "optimizer", "--fail_step", "5"});
    const auto result = run_program(stopped);
    EXPECT_EQ(result.code, 75) << result.err;
    EXPECT_EQ(run_program(words).code, 0);
  }
}

// Control: a run that continues with another learning rate does not end with the same bytes.
TEST_F(Stop, IsComparedInEarnest) {
  const TempDir straight_dir;
  ASSERT_EQ(run_program(command(TRAIN_PROGRAM, straight_dir.path() / "run", flags(straight_dir))).code, 0);
  Process process(train());
  ASSERT_TRUE(process.wait_for("step 100 ")) << process.err();
  process.signal(SIGTERM);
  ASSERT_EQ(process.wait().code, 75);
  auto other = train();
  other.insert(other.end(), {"--optim.lr", "0.02"});
  ASSERT_EQ(run_program(other).code, 0);
  EXPECT_FALSE(final_state(run()) == final_state(straight_dir.path() / "run"));
}

// The signal reaches a thread of LibTorch, which does not wait for it.
TEST_F(Stop, SavesAlsoIfTheLauncherHasThreads) {
  Process process(train(), {{"TRAIN_PROGRAM_STARTS_THREADS", "1"}, {"OMP_NUM_THREADS", "4"}});
  ASSERT_TRUE(process.wait_for("step 100 ")) << process.err();
  process.signal(SIGTERM);
  const auto result = process.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_THAT(result.err, HasSubstr("run the same command again to continue"));
}

// A long step is completed and then saved.
TEST_F(Stop, DuringALongStepWaitsForIt) {
  auto words = train();
  words.insert(words.end(), {"--fail", "slow", "--fail_step", "60", "--dist.grace_s", "0.5"});
  Process process(words);
  ASSERT_TRUE(process.wait_for("is slow now")) << process.err();
  process.signal(SIGTERM);
  const auto result = process.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_GE(std::stoi(last_step(0)), 60) << "the long step is the one with this number";
  EXPECT_EQ(last_step(0), last_step(1));
}

// Like a batch system, the test kills the run if the stop takes too long. The next start finds the previous checkpoint,
// here after an epoch of 13 steps.
TEST_F(Stop, ThatIsFollowedByAKillLosesStepsOnly) {
  const TempDir straight_dir;
  ASSERT_EQ(run_program(command(TRAIN_PROGRAM, straight_dir.path() / "run", flags(straight_dir))).code, 0);
  auto words = train();
  words.insert(words.end(), {"--fail", "sleep", "--fail_step", "60"});
  Process process(words);
  ASSERT_TRUE(process.wait_for("hangs now")) << process.err();
  process.signal(SIGTERM);
  EXPECT_FALSE(process.ended_within(milliseconds(500)));
  const auto ranks = Process::ranks_of(process.pid());
  process.signal(SIGKILL);
  EXPECT_EQ(process.wait().code, 137);
  EXPECT_TRUE(Process::gone(ranks, milliseconds(1000)));
  const auto again = run_program(train());
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("resuming from step 52"));
  EXPECT_TRUE(final_state(run()) == final_state(straight_dir.path() / "run"));
}

/// A job of Slurm without srun, whose scontrol writes down what it is asked for.
class Requeue : public testing::Test {
 protected:
  Requeue() {
    const auto scontrol = dir_.path() / "scontrol";
    write_text(scontrol, "#!/bin/sh\necho \"$@\" >> '" + calls_.string() + "'\n");
    std::filesystem::permissions(scontrol, std::filesystem::perms::owner_all);
  }

  std::vector<std::string> train(const std::vector<std::string>& more = {}) const {
    return command(TRAIN_PROGRAM, dir_.path() / "run",
                   with({"--devices", "2", "--max_epochs", "100000", "--dist.requeue", "true"}, more));
  }
  Process::Environment in_job(Process::Environment more = {}) const {
    more["SLURM_JOB_ID"] = "7";
    more["PATH"] = dir_.path().string() + ":" + read_environment().get("PATH").value_or("");
    return more;
  }
  std::vector<std::string> calls() const { return read_lines(calls_); }
  /// Asks for a stop when the process has printed this. It ends with 75, and the job is queued again once.
  Process::Result stop_at(Process& process, const std::string& line) const {
    EXPECT_TRUE(process.wait_for(line)) << process.err();
    process.signal(SIGUSR1);
    Process::Result result = process.wait();
    EXPECT_EQ(result.code, 75) << result.err;
    EXPECT_THAT(calls(), ElementsAre("show job 7", "requeue 7"));
    return result;
  }

  TempDir dir_;
  const std::filesystem::path calls_ = dir_.path() / "calls";
};

TEST_F(Requeue, IsAskedForOnceByATrainingThatStops) {
  Process process(train(), in_job());
  stop_at(process, "step 5 ");
}

TEST_F(Requeue, FollowsAStopBeforeARestart) {
  Process process(train({"--dist.max_restarts", "5", "--fail", "kill", "--fail_in", "init", "--fail_step", "0"}),
                  in_job());
  EXPECT_THAT(stop_at(process, "restart 4 in 4 s").err, HasSubstr("stopped before the restart"));
}

TEST_F(Requeue, FollowsAStopWhileRanksLoad) {
  Process process(train(), in_job({{"TRAIN_PROGRAM_WAITS_IN_MAIN", "1"}}));
  EXPECT_THAT(stop_at(process, "waits in main").err, HasSubstr("before the training began"));
}

TEST_F(Requeue, DoesNotFollowCtrlC) {
  Process process(train(), in_job({{"TRAIN_PROGRAM_WAITS_IN_MAIN", "1"}}));
  ASSERT_TRUE(process.wait_for("waits in main")) << process.err();
  process.signal(SIGINT);
  EXPECT_EQ(process.wait().code, 130);
  EXPECT_THAT(calls(), ElementsAre());
}

// One task per node, of which the other one has not started.
TEST_F(Requeue, FollowsAStopWhileTheLauncherWaitsForAnotherNode) {
  Process process(train({"--dist.init_timeout_s", "60"}), in_job(slurm_task(/*node=*/0, free_port())));
  stop_at(process, "waiting for node 1");
}

TEST(ManyRanks, StartTrainAndStopOnFewCores) {
  const TempDir dir;
  Process process(command(TRAIN_PROGRAM, dir.path() / "run",
                          {"--nprocs", "16", "--max_epochs", "100000", "--global_batch_size", "16"}));
  ASSERT_TRUE(process.wait_for("step 5 ", Process::Seconds(120))) << process.err();
  const auto ranks = Process::ranks_of(process.pid());
  EXPECT_GE(ranks.size(), 16U);
  process.signal(SIGTERM);
  const auto result = process.wait(Process::Seconds(60));
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_TRUE(Process::gone(ranks, std::chrono::seconds(0)));
  EXPECT_THAT(result.err, HasSubstr("run the same command again to continue"));
}

}  // namespace
}  // namespace lockstep
