// Under other launchers: the other ranks name a failed rank and do not wait for it.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/plain_ranks.h"
#include "support/python.h"
#include "support/requirements.h"

namespace lockstep {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

std::vector<std::string> failing(const TempDir& dir, const std::string& how, int rank) {
  return command(TRAIN_PROGRAM, dir.path() / "run",
                 {"--max_epochs", "10000", "--fail", how, "--fail_rank", std::to_string(rank), "--fail_step", "5"});
}

struct Failure {
  std::string how;
  std::string text;  // what the others report about it
};
std::ostream& operator<<(std::ostream& out, const Failure& failure) { return out << failure.how; }

class UnderTorchrun : public testing::TestWithParam<std::tuple<Failure, int>> {};

TEST_P(UnderTorchrun, TheRightRankIsNamedAndNobodyWaits) {
  const std::string torchrun = find_torchrun(LIBTORCH_DIR);
  LOCKSTEP_REQUIRE(Requirements().that(!torchrun.empty(), "no torchrun beside the LibTorch at " LIBTORCH_DIR));
  const auto& [failure, rank] = GetParam();
  const TempDir dir;
  const auto result =
      run_program(under_torchrun(LIBTORCH_DIR, 3, {}, failing(dir, failure.how, rank)), {{"OMP_NUM_THREADS", "1"}});
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_LT(result.seconds, 25) << result.err;
  for (int other = 0; other < 3; ++other) {
    if (other != rank) {
      EXPECT_THAT(result.err, ContainsRegex("\\[rank" + std::to_string(other) + "\\]: stopped: rank " +
                                            std::to_string(rank) + " \\(pid [0-9]+@[^)]+\\) " + failure.text));
    }
  }
  const auto cause = result.err.find("Root Cause");
  ASSERT_NE(cause, std::string::npos) << result.err;
  EXPECT_THAT(result.err.substr(cause), ContainsRegex("rank      : " + std::to_string(rank) + " "));
  if (failure.how != "kill") {
    EXPECT_THAT(result.err.substr(cause), HasSubstr("cannot decode sample 4411")) << "from the error file";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, UnderTorchrun,
    testing::Combine(
        testing::Values(Failure{"throw",
                                "failed: at step 5 in Task::optimize: std::runtime_error: cannot decode sample 4411"},
                        Failure{"thread", "ended before the others"}, Failure{"kill", "ended before the others"}),
        testing::Values(0, 2)),
    [](const auto& test) {
      return std::get<0>(test.param).how + "_on_rank_" + std::to_string(std::get<1>(test.param));
    });

class WithoutAnyLauncher : public testing::TestWithParam<std::tuple<Failure, int>> {};

TEST_P(WithoutAnyLauncher, TheOthersEndByThemselves) {
  const auto& [failure, failed] = GetParam();
  const TempDir dir;
  const auto ranks = start_ranks(3, failing(dir, failure.how, failed));
  const auto cause = ranks[static_cast<std::size_t>(failed)]->wait();
  const auto begin = std::chrono::steady_clock::now();
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == failed) {
      continue;
    }
    const auto result = ranks[static_cast<std::size_t>(rank)]->wait();
    EXPECT_EQ(result.code, 76) << result.err;
    if (failed == 0 && failure.how != "throw") {  // the store ends with it
      EXPECT_THAT(result.err,
                  testing::AnyOf(HasSubstr("stopped: rank 0 ("), HasSubstr("the rendezvous store is gone")));
    } else {
      EXPECT_THAT(result.err, ContainsRegex("stopped: rank " + std::to_string(failed) + " \\(pid " +
                                            std::to_string(ranks[static_cast<std::size_t>(failed)]->pid()) +
                                            "@[^)]+\\) " + failure.text));
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << "2 s, on busy cores";
  EXPECT_EQ(cause.code, failure.how == "throw" ? 1 : failure.how == "exit0" ? 0 : 137) << cause.err;
}

INSTANTIATE_TEST_SUITE_P(
    Ways, WithoutAnyLauncher,
    testing::Combine(
        testing::Values(Failure{"throw",
                                "failed: at step 5 in Task::optimize: std::runtime_error: cannot decode sample 4411"},
                        Failure{"kill", "ended before the others"}, Failure{"exit0", "ended before the others"}),
        testing::Values(0, 2)),
    [](const auto& test) {
      return std::get<0>(test.param).how + "_on_rank_" + std::to_string(std::get<1>(test.param));
    });

// Rank 2 hangs, so that the others cannot leave their collective; then rank 1 dies.
TEST(Guard, EndsARankThatIsStuckInACollective) {
  const TempDir dir;
  const auto ranks = start_ranks(3, command(TRAIN_PROGRAM, dir.path() / "run", {"--max_epochs", "100000"}));
  ASSERT_TRUE(ranks[0]->wait_for("step 5 ")) << ranks[0]->err();
  ranks[2]->signal(SIGSTOP);
  ranks[1]->signal(SIGKILL);
  const auto result = ranks[0]->wait(Process::Seconds(20));
  EXPECT_EQ(result.code, 76) << result.err;
  EXPECT_THAT(result.err, HasSubstr("stopped: rank 1 (pid " + std::to_string(ranks[1]->pid())));
  EXPECT_EQ(ranks[1]->wait().code, 137);
  ranks[2]->signal(SIGCONT);
  EXPECT_EQ(ranks[2]->wait(Process::Seconds(20)).code, 76);
}

// The others wait in the store for their turn, without a deadline.
TEST(Guard, EndsRanksThatWaitForATurn) {
  const TempDir dir;
  const auto ranks =
      start_ranks(3, command(TRAIN_PROGRAM, dir.path() / "run",
                             {"--fail", "kill", "--fail_in", "turn", "--fail_rank", "1", "--fail_step", "0"}));
  EXPECT_EQ(ranks[1]->wait().code, 137);
  for (const int other : {0, 2}) {
    const auto result = ranks[static_cast<std::size_t>(other)]->wait(Process::Seconds(20));
    EXPECT_EQ(result.code, 76) << result.err;
    EXPECT_THAT(result.err, HasSubstr("stopped: rank 1 (pid " + std::to_string(ranks[1]->pid())));
  }
}

// Its sockets cannot be created: it fails after the rendezvous, before the ranks are connected.
TEST(Guard, TellsTheOthersOfARankThatCannotBeConnected) {
  for (const int failing : {0, 1}) {
    const TempDir dir;
    const auto ranks = start_ranks(2, command(TRAIN_PROGRAM, dir.path() / "run", {}), [&](PlainRank& rank) {
      rank.variables["LOCAL_RANK"] = "0";
      rank.variables["LOCAL_WORLD_SIZE"] = "1";
      if (rank.rank == failing) {
        rank.variables["GLOO_SOCKET_IFNAME"] = "nowhere0";
      }
    });
    const auto cause = ranks[static_cast<std::size_t>(failing)]->wait(Process::Seconds(30));
    EXPECT_EQ(cause.code, 76) << cause.err;
    const auto result = ranks[static_cast<std::size_t>(1 - failing)]->wait(Process::Seconds(10));
    EXPECT_EQ(result.code, 76) << result.err;
    EXPECT_THAT(result.err, ContainsRegex("stopped: rank " + std::to_string(failing) +
                                          " \\(pid [0-9]+@[^)]+\\) failed: .*nowhere0"));
  }
}

const std::vector<std::string> kShortPatience{"--dist.stall_warn_s", "2", "--dist.stall_timeout_s", "4"};

Process::Result three_under_torchrun(const TempDir& dir, const std::vector<std::string>& more) {
  const auto program = command(TRAIN_PROGRAM, dir.path() / "run", with({"--max_epochs", "10000"}, more));
  return run_program(under_torchrun(LIBTORCH_DIR, 3, {}, program), {{"OMP_NUM_THREADS", "1"}});
}

TEST(Stall, OfARankUnderTorchrunIsNamedAndEndsTheRun) {
  LOCKSTEP_REQUIRE(Requirements().that(!find_torchrun(LIBTORCH_DIR).empty(), "no torchrun beside the LibTorch"));
  const TempDir dir;
  const auto result = three_under_torchrun(
      dir, with(kShortPatience, {"--fail", "sleep", "--fail_in", "forward", "--fail_rank", "1", "--fail_step", "5"}));
  EXPECT_THAT(result.err, ContainsRegex("\\[rank0\\]: warning: no progress for [0-9]+ s; rank 1 is behind:\n"
                                        "  ranks 0,2: step 5, backward, in collective [0-9]+: all-reduce of [^\n]+\n"
                                        "  rank 1: step 5, forward\n"));
  EXPECT_THAT(result.err, ContainsRegex("\\[rank1\\]: error: rank 1 \\(pid [0-9]+@[^)]+\\) failed: "
                                        "made no progress for 4 s at step 5 in forward"));
  EXPECT_THAT(result.err, HasSubstr("rank 1 at step 5 in forward:\n  #0 ")) << "its stack";
  for (const char* other : {"0", "2"}) {
    EXPECT_THAT(result.err, ContainsRegex(std::string("\\[rank") + other +
                                          "\\]: stopped: rank 1 \\(pid [0-9]+@[^)]+\\) failed: made no progress"));
  }
  EXPECT_THAT(result.err, ContainsRegex("Root Cause[^#]*rank      : 1 [^#]*exitcode  : 124"));
}

TEST(Stall, OfRanksInDifferentCollectivesIsNamedUnderTorchrun) {
  LOCKSTEP_REQUIRE(Requirements().that(!find_torchrun(LIBTORCH_DIR).empty(), "no torchrun beside the LibTorch"));
  const TempDir dir;
  const auto result = three_under_torchrun(dir, with(kShortPatience, {"--backend", "shm", "--fail_in", "collective",
                                                                      "--fail_rank", "1", "--fail_step", "5"}));
  EXPECT_THAT(result.err,
              ContainsRegex("\\[rank0\\]: warning: no progress for [0-9]+ s; the ranks are in different collectives:\n"
                            "  ranks 0,2: step 5, backward, in collective ([0-9]+): all-reduce of [^\n]+\n"
                            "  rank 1: step 5, Task::optimize, in collective [0-9]+: all-reduce of 4 B\n"
                            "  hint: every rank has to call the same collectives in the same order"));
}

TEST(Stall, IsNotFoundWhereARankIsMerelySlow) {
  LOCKSTEP_REQUIRE(Requirements().that(!find_torchrun(LIBTORCH_DIR).empty(), "no torchrun beside the LibTorch"));
  const TempDir dir;
  const auto result = three_under_torchrun(dir, {"--max_steps", "6", "--fail_in", "forward", "--fail_rank", "1",
                                                 "--slow_ms", "1500", "--dist.stall_warn_s", "6"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, testing::Not(HasSubstr("no progress")));
}

// Rank 0 looks for stalls and serves the store: the next rank sees that it is stopped. The ranks of a machine look for
// each other in the store once a second and do not say when they are done; 150 steps of 20 ms are three such looks.
TEST(Stall, OfRank0ThatIsStoppedIsNamedByTheNextRank) {
  const TempDir dir;
  const auto ranks = start_ranks(2, command(TRAIN_PROGRAM, dir.path() / "run",
                                            with(kShortPatience, {"--max_epochs", "100000", "--work_ms", "20"})));
  ASSERT_TRUE(ranks[0]->wait_for("step 150 ")) << ranks[0]->err();
  ranks[0]->signal(SIGSTOP);
  const auto result = ranks[1]->wait(Process::Seconds(30));
  EXPECT_EQ(result.code, 76) << result.err;
  const std::string pid = std::to_string(ranks[0]->pid());
  EXPECT_THAT(result.err, HasSubstr("[rank1]: warning: rank 0 (pid " + pid +
                                    ") is stopped by a signal (state T); kill -CONT " + pid + " resumes it"));
  EXPECT_THAT(result.err, ContainsRegex("stopped: rank 0 \\(pid " + pid +
                                        "@[^)]+\\) failed: made no progress for 4 s .*: "
                                        "it is stopped by a signal \\(state T\\)"));
  ranks[0]->signal(SIGCONT);
  EXPECT_EQ(ranks[0]->wait(Process::Seconds(30)).code, 76);
}

/// One rank below an agent of torchrun, with `wrapper` between them.
std::vector<std::string> one_rank_under_torchrun(const TempDir& dir, const std::vector<std::string>& wrapper) {
  const auto train = command(TRAIN_PROGRAM, dir.path() / "run", {"--max_epochs", "100000"});
  return under_torchrun(LIBTORCH_DIR, 1, {}, with(wrapper, train));
}

const std::vector<std::string> kShell{"sh", "-c", "\"$0\" \"$@\"; exit $?"};

TEST(Guard, EndsARankWhoseAgentWasKilled) {
  LOCKSTEP_REQUIRE(Requirements().that(!find_torchrun(LIBTORCH_DIR).empty(), "no torchrun beside the LibTorch"));
  for (const auto& wrapper : {std::vector<std::string>(), kShell}) {
    const TempDir dir;
    Process agent(one_rank_under_torchrun(dir, wrapper));
    ASSERT_TRUE(agent.wait_for("step 5 ")) << agent.err();
    const auto rank = Process::ranks_of(agent.pid());
    ASSERT_EQ(rank.size(), 1U);
    agent.signal(SIGKILL);
    const auto result = agent.wait(Process::Seconds(20));  // until the rank closes its standard error
    EXPECT_THAT(result.err, ContainsRegex("stopped: the launcher of rank 0 ended: pid " + std::to_string(agent.pid())));
  }
}

// If a script between them dies, its child would continue to train, and the agent would not detect it.
TEST(Guard, EndsARankWhoseScriptWasKilled) {
  LOCKSTEP_REQUIRE(Requirements().that(!find_torchrun(LIBTORCH_DIR).empty(), "no torchrun beside the LibTorch"));
  const TempDir dir;
  Process agent(one_rank_under_torchrun(dir, kShell));
  ASSERT_TRUE(agent.wait_for("step 5 ")) << agent.err();
  const pid_t script = Process::ranks_of(agent.pid()).at(0);  // the first process with a RANK variable
  kill(script, SIGKILL);
  const auto result = agent.wait(Process::Seconds(30));
  EXPECT_THAT(result.err, ContainsRegex("stopped: the launcher of rank 0 ended: pid " + std::to_string(script)));
}

// A process without a launcher survives the end of its parent.
TEST(Guard, LeavesARankAloneThatWasStartedByHand) {
  const TempDir dir;
  const auto train = command(TRAIN_PROGRAM, dir.path() / "run", {"--max_epochs", "100000", "--max_steps", "300"});
  const auto result = run_program(with({"sh", "-c", "\"$0\" \"$@\" &"}, train), rank_variables(0, 1, free_port()));
  EXPECT_THAT(result.err, HasSubstr("finished at step 300"));
}

// A signal to a whole job ends the script at once, while its rank still saves.
TEST(Guard, LetsARankSaveWhenItsScriptEndsFirst) {
  LOCKSTEP_REQUIRE(Requirements().that(!find_torchrun(LIBTORCH_DIR).empty(), "no torchrun beside the LibTorch"));
  const TempDir dir;
  Process agent(with(one_rank_under_torchrun(dir, kShell), {"--work_ms", "1500", "--checkpoint.every_epochs", "0"}));
  ASSERT_TRUE(agent.wait_for("step 1 ")) << agent.err();
  const pid_t script = Process::ranks_of(agent.pid()).at(0);
  const auto rank = Process::children_of(script);
  ASSERT_EQ(rank.size(), 1U);
  kill(rank.front(), SIGTERM);
  kill(script, SIGKILL);
  const auto result = agent.wait(Process::Seconds(30));
  EXPECT_THAT(result.err, HasSubstr("run the same command again to continue"));
  EXPECT_FALSE(newest_checkpoint(dir.path() / "run").empty());
}

}  // namespace
}  // namespace lockstep
