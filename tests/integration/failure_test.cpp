// One rank fails: its own message is shown, the exit code is correct, and all processes end.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/variables.h>

#include "base/text.h"
#include "support/plain_ranks.h"
#include "support/requirements.h"
#include "support/runs.h"
#include "support/sweep.h"

namespace lockstep {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

struct Failure {
  std::string how;
  int code;
  std::string text;
};
std::ostream& operator<<(std::ostream& out, const Failure& failure) { return out << failure.how; }

class OneRankFails : public testing::TestWithParam<std::tuple<Failure, int, std::string>> {};

TEST_P(OneRankFails, AndIsBlamed) {
  const auto& [failure, rank, backend] = GetParam();
  const TempDir dir;
  const auto result = run_program(command(TRAIN_PROGRAM, dir.path() / "run",
                                          {"--nprocs", "3", "--fail", failure.how, "--fail_rank", std::to_string(rank),
                                           "--fail_step", "5", "--backend", backend}));
  EXPECT_EQ(result.code, failure.code) << result.err;
  EXPECT_LT(result.seconds, 15);
  const auto last = result.err.rfind("rank " + std::to_string(rank) + " ");
  ASSERT_NE(last, std::string::npos) << result.err;
  EXPECT_THAT(result.err.substr(last), HasSubstr(failure.text));
}

INSTANTIATE_TEST_SUITE_P(
    Ways, OneRankFails,
    testing::Combine(
        testing::Values(Failure{"throw", 1, "cannot decode sample 4411"}, Failure{"segv", 139, "signal 11"},
                        Failure{"abort", 134, "signal 6"}, Failure{"kill", 137, "signal 9"},
                        Failure{"exit0", 1, "ended with exit code 0 before its training was done: at step"},
                        Failure{"exit_crash", 1, "ended with exit code 0 before its training was done"},
                        Failure{"exit7", 1, "code 7"}, Failure{"int", 1, "unknown exception of type int"},
                        Failure{"noexcept", 134, "std::terminate after std::runtime_error"},
                        Failure{"thread", 134, "std::terminate after std::runtime_error"},
                        Failure{"terminate", 134, "std::terminate after no exception"}),
        testing::Values(0, 2), testing::Values("auto", "gloo")),
    [](const auto& test) {
      return std::get<0>(test.param).how + "_on_rank_" + std::to_string(std::get<1>(test.param)) + "_" +
             std::get<2>(test.param);
    });

TEST(OneRank, CrashesWithTheNamesOfItsFunctions) {
  const TempDir dir;
  const auto result = run_program(command(TRAIN_PROGRAM, dir.path() / "run", {"--fail", "segv", "--fail_step", "3"}));
  EXPECT_EQ(result.code, 139);
  EXPECT_THAT(result.err, HasSubstr("crashed"));
  for (const char* function : {"optimize+0x", "lockstep::Trainer::fit", "lockstep::run"}) {
    EXPECT_THAT(result.err, HasSubstr(function));
  }
}

TEST(OneRank, FailsWithItsOwnCodeAndText) {
  const TempDir dir;
  const auto result = run_program(command(TRAIN_PROGRAM, dir.path() / "run", {"--fail_step", "3"}));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("cannot decode sample 4411"));
}

TEST(OneRank, EndsAtTheFirstOfTwoLimitsAndNamesIt) {
  const TempDir dir;
  const auto end_of = [&](const std::string& run, const std::vector<std::string>& limits) {
    const auto result = run_program(command(TRAIN_PROGRAM, dir.path() / run, limits));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.err;
  };
  EXPECT_THAT(end_of("epochs", {"--max_steps", "1000", "--max_epochs", "1"}),
              HasSubstr("finished at step 26, epoch 1 (--max_epochs 1), saved in "));
  EXPECT_THAT(end_of("steps", {"--max_steps", "30", "--max_epochs", "0"}),
              HasSubstr("finished at step 30, epoch 2 (--max_steps 30), saved in "));
}

TEST(NonFiniteLoss, EndsEveryRankWithoutARestart) {
  const TempDir dir;
  const auto result = run_program(command(TRAIN_PROGRAM, dir.path() / "run",
                                          {"--nprocs", "3", "--fail_in", "loss", "--fail_rank", "1", "--fail_step", "5",
                                           "--dist.max_restarts", "3", "--checkpoint.every_steps", "1"}));
  EXPECT_EQ(result.code, 65) << result.err;
  EXPECT_THAT(
      result.err,
      ContainsRegex("the loss of step 5 is not finite on rank 1 \\(samples [0-9]+(, [0-9]+)*[^)]*\\); the first "
                    "parameter that is not finite is"));
  EXPECT_THAT(result.err, HasSubstr("not restarted"));
  EXPECT_EQ(newest_checkpoint(dir.path() / "run").filename(), "step-0000000005");
}

// Exceptions of LibTorch contain 10 to 30 stack frames after the cause.
TEST(LibTorchErrors, EndWithCauseAndHint) {
  for (const std::string ranks : {"1", "2"}) {
    for (const std::string phase : {"forward", "data", "validation"}) {
      const TempDir dir;
      const auto result =
          run_program(command(TRAIN_PROGRAM, dir.path() / "run",
                              {"--nprocs", ranks, "--fail", "shape", "--fail_in", phase, "--fail_step", "2"}));
      EXPECT_EQ(result.code, 1) << result.err;
      EXPECT_THAT(result.err, Not(HasSubstr("frame #")));
      EXPECT_THAT(result.err, HasSubstr("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"));
      EXPECT_THAT(result.err, ContainsRegex("(at|failed at) step [0-9]+ in " + phase + ": [^\n]*mat1"));
      const auto lines = split(trim(result.err), '\n');
      EXPECT_GE(lines.size(), 2U);
      if (phase != "data") {  // there the message contains the number of the sample
        EXPECT_THAT(result.err, HasSubstr("  hint: compare the shape of a sample"));
      }
    }
  }
}

TEST(LibTorchErrors, ShowTheirStackOnRequest) {
  const TempDir dir;
  const auto result =
      run_program(command(TRAIN_PROGRAM, dir.path() / "run", {"--nprocs", "2", "--fail", "shape", "--fail_step", "2"}),
                  {{"TORCH_SHOW_CPP_STACKTRACES", "1"}});
  EXPECT_EQ(result.code, 1) << result.err;
  ASSERT_THAT(result.err, HasSubstr("frame #"));
  EXPECT_THAT(result.err.substr(result.err.rfind("frame #")), HasSubstr("error: "))
      << "the cause is the last thing on the screen";
}

// A program that leaves by exit(0) has not trained.
TEST(OneRank, ExitsWithAnErrorIfTheProgramCallsExit) {
  const TempDir dir;
  const auto result = run_program(command(TRAIN_PROGRAM, dir.path() / "run", {"--fail", "exit0", "--fail_step", "5"}));
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("error: the program called exit(0) before its worker function returned"));
}

TEST(OneRank, StopsOnEverySignalThatSeveralRanksStopOn) {
  for (const std::string ranks : {"1", "2"}) {
    for (const auto& [signal, code] :
         {std::pair{SIGINT, 130}, std::pair{SIGTERM, 75}, std::pair{SIGUSR1, 75}, std::pair{SIGHUP, 75}}) {
      const TempDir dir;
      Process process(command(TRAIN_PROGRAM, dir.path() / "run", {"--nprocs", ranks, "--max_epochs", "10000"}));
      ASSERT_TRUE(process.wait_for("step 3 ")) << process.err();
      process.signal(signal);
      EXPECT_EQ(process.wait().code, code);
      EXPECT_FALSE(newest_checkpoint(dir.path() / "run").empty());
    }
  }
}

TEST(OneRank, SaysThatATestWasStopped) {
  const TempDir dir;
  const auto result =
      run_program(command(TRAIN_PROGRAM, dir.path() / "run",
                          {"--max_epochs", "1", "--fail", "term", "--fail_in", "test", "--fail_step", "1"}));
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the test was stopped before its end: "));
  EXPECT_THAT(result.err, HasSubstr("; run the same command again"));
}

TEST(OneRank, UnderNohupOutlivesItsTerminal) {
  for (const std::string ranks : {"1", "2"}) {
    const TempDir dir;
    Process process(with({"nohup"}, command(TRAIN_PROGRAM, dir.path() / "run",
                                            {"--nprocs", ranks, "--max_steps", "200", "--max_epochs", "10000"})));
    ASSERT_TRUE(process.wait_for("step 3 ")) << process.err();
    process.signal(SIGHUP);
    for (const pid_t rank : Process::ranks_of(process.pid())) {  // sent to every process of a session
      kill(rank, SIGHUP);
    }
    const auto result = process.wait();
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("finished at step 200"));
  }
}

struct StartUp {
  std::string where;
  std::string how;
};
std::ostream& operator<<(std::ostream& out, const StartUp& start) { return out << start.how << "_in_" << start.where; }

class BeforeTheFirstStep : public testing::TestWithParam<std::tuple<StartUp, int>> {};

// Nothing was trained, so there is nothing to wait for.
TEST_P(BeforeTheFirstStep, AStopEndsTheRunAtOnce) {
  const auto& [start, ranks] = GetParam();
  const TempDir dir;
  Process process(command(TRAIN_PROGRAM, dir.path() / "run",
                          {"--nprocs", std::to_string(ranks), "--fail_in", start.where, "--fail", start.how,
                           "--fail_step", "0", "--fail_rank", std::to_string(ranks - 1)}));
  ASSERT_TRUE(process.wait_for("hangs now")) << process.err();
  const auto ranks_there = Process::ranks_of(process.pid());
  process.signal(SIGTERM);
  const auto begin = std::chrono::steady_clock::now();
  const auto result = process.wait(Process::Seconds(20));
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << result.err;
  EXPECT_THAT(result.err, HasSubstr("stopped by signal 15 (Terminated) before the training began"));
  EXPECT_TRUE(Process::gone(ranks_there, std::chrono::seconds(0)));
}

INSTANTIATE_TEST_SUITE_P(Hangs, BeforeTheFirstStep,
                         testing::Combine(testing::Values(StartUp{"init", "sleep"}, StartUp{"init", "spin"},
                                                          StartUp{"turn", "sleep"}, StartUp{"data", "sleep"}),
                                          testing::Values(1, 3)),
                         [](const auto& test) {
                           return std::get<0>(test.param).how + "_in_" + std::get<0>(test.param).where + "_of_" +
                                  std::to_string(std::get<1>(test.param));
                         });

/// One rank: a script whose first training is killed after five steps. `then` are the flags of its second one.
std::vector<std::string> two_programs(const TempDir& dir, const std::string& then) {
  const std::string script = "\"$0\" \"$@\" --fail kill --fail_step 5 || exec \"$0\" \"$@\" " + then;
  return with({LOCKSTEP_CLI, "run", "--nproc-per-node", "1", "--", "sh", "-c", script},
              command(TRAIN_PROGRAM, dir.path() / "run", {}));
}

TEST(ASecondProgramOfAScript, IsNotThoughtToBeInTheTrainingOfTheFirst) {
  const TempDir dir;
  const auto result = run_program(two_programs(dir, "--fail kill --fail_step 9"));
  EXPECT_EQ(result.code, 137) << result.err;
  EXPECT_THAT(result.err, HasSubstr("died of signal 9 (Killed) at step 9 in Task::optimize"));
}

TEST(ASecondProgramOfAScript, CanBeStoppedBeforeItTrains) {
  const TempDir dir;
  Process process(two_programs(dir, "--fail sleep --fail_in init --fail_step 0"));
  ASSERT_TRUE(process.wait_for("hangs now")) << process.err();
  process.signal(SIGTERM);
  const auto result = process.wait(Process::Seconds(20));
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_THAT(result.err, HasSubstr("stopped by signal 15 (Terminated) before the training began"));
}

TEST(AStop, EndsARankThatWaitsForAnother) {
  for (const int rank : {0, 1}) {
    const TempDir dir;
    Process process(command(TRAIN_PROGRAM, dir.path() / "run", {}), rank_variables(rank, 2, free_port()));
    // Rank 0 reports it when it starts, rank 1 after a wait.
    ASSERT_TRUE(process.wait_for(rank == 0 ? "checkpoints" : "waiting: nobody listens", Process::Seconds(30)));
    process.signal(SIGTERM);
    const auto result = process.wait(Process::Seconds(10));
    EXPECT_EQ(result.code, 75) << result.err;
    EXPECT_THAT(result.err, HasSubstr("stopped by signal 15 (Terminated) before the training began"));
  }
}

// A stopped process receives no requests, so it is continued first, and all ranks save.
TEST(AStop, WakesARankThatIsStopped) {
  for (const std::size_t rank : {0U, 1U}) {
    const TempDir dir;
    Process process(command(TRAIN_PROGRAM, dir.path() / "run", {"--nprocs", "2", "--max_epochs", "10000"}));
    ASSERT_TRUE(process.wait_for("step 3 ")) << process.err();
    kill(Process::ranks_of(process.pid()).at(rank), SIGSTOP);
    ASSERT_TRUE(process.wait_for("is stopped by a signal")) << process.err();
    process.signal(SIGTERM);
    const auto result = process.wait(Process::Seconds(20));
    EXPECT_EQ(result.code, 75) << result.err;
    EXPECT_FALSE(newest_checkpoint(dir.path() / "run").empty());
  }
}

TEST(AStop, OfAHangNamesTheRankBeforeASchedulerKills) {
  LOCKSTEP_REQUIRE(Requirements().that(rounds(0) > 0, "takes half a minute: set LOCKSTEP_TEST_ROUNDS=100"));
  const TempDir dir;
  Process process(command(TRAIN_PROGRAM, dir.path() / "run",
                          {"--nprocs", "2", "--fail", "sleep", "--fail_step", "5", "--fail_rank", "1"}));
  ASSERT_TRUE(process.wait_for("hangs now")) << process.err();
  process.signal(SIGTERM);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(process.wait_for("after a stop request; rank 1 is behind:", Process::Seconds(10)));
  const auto result = process.wait(Process::Seconds(60));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(29)) << result.err;
  EXPECT_EQ(result.code, 124) << result.err;
  EXPECT_THAT(result.err, HasSubstr("made no progress for 20 s after a stop request at step 5 in Task::optimize"));
}

/// The program, started by a shell with `redirection`.
std::vector<std::string> redirected(const std::string& redirection, const std::vector<std::string>& program) {
  return with({"sh", "-c", "exec \"$0\" \"$@\" " + redirection}, program);
}

class Output : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(Output, ThatGoesNowhereEndsNoRun) {
  const auto& [redirection, ranks] = GetParam();
  const TempDir dir;
  const auto run = dir.path() / "run";
  const auto good = run_program(redirected(redirection, command(TRAIN_PROGRAM, run, {"--nprocs", ranks})));
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_THAT(read_text(run / "events.jsonl"), HasSubstr("finished at step"));
  EXPECT_FALSE(newest_checkpoint(run).empty());
  const auto bad =
      run_program(redirected(redirection, command(TRAIN_PROGRAM, dir.path() / "bad",
                                                  {"--nprocs", ranks, "--fail_step", "3", "--fail", "segv"})));
  EXPECT_EQ(bad.code, 139) << bad.err;
}

INSTANTIATE_TEST_SUITE_P(Ways, Output,
                         testing::Combine(testing::Values("2>&-", ">&- 2>&-", "<&- >&- 2>&-", "2>/dev/full",
                                                          ">/dev/full 2>/dev/full"),
                                          testing::Values("1", "2")));

TEST(Start, WithoutANetworkIsRefusedAtOnce) {
  const std::vector<std::string> unshare{"unshare", "--net"};
  LOCKSTEP_REQUIRE(Requirements().that(run_program(with(unshare, {"true"})).code == 0, "no network namespaces"));
  const TempDir dir;
  const auto result = run_program(with(unshare, command(TRAIN_PROGRAM, dir.path() / "run", {"--nprocs", "2"})), {}, ".",
                                  Process::Seconds(20));
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("error: the ranks cannot reach 127.0.0.1: Network is unreachable"));
}

// Nobody has set the address on which the ranks meet.
TEST(Start, WithoutTheAddressOfTheLoopbackInterfaceSaysHowToAddIt) {
  const std::vector<std::string> unshare{"unshare", "--net", "sh", "-c",
                                         "ip link set lo up && ip addr del 127.0.0.1/8 dev lo && exec \"$0\" \"$@\""};
  LOCKSTEP_REQUIRE(
      Requirements().that(run_program(with(unshare, {"true"})).code == 0, "no network namespaces, or no ip"));
  const TempDir dir;
  const auto result = run_program(with(unshare, command(TRAIN_PROGRAM, dir.path() / "run", {"--nprocs", "2"})), {}, ".",
                                  Process::Seconds(20));
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("error: cannot listen on 127.0.0.1:0: Cannot assign requested address\n"
                        "  hint: the loopback interface has to have this address: ip addr add 127.0.0.1/8"));
}

// lockstep run trusts the exit code of a program without run(), but not of one that said it would announce its end.
TEST(LockstepRun, BlamesARankThatExitsInTheMiddleOfRun) {
  const TempDir dir;
  const auto result = run_program(
      with({LOCKSTEP_CLI, "run", "--nproc-per-node", "2", "--"},
           command(TRAIN_PROGRAM, dir.path() / "run", {"--fail", "exit0", "--fail_rank", "1", "--fail_step", "5"})));
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("ended with exit code 0 before its training was done"));
}

// What is left is told before the cause: by our launcher, or by the rank that failed.
TEST(SeveralRanks, TellWhatIsSavedAfterAFailure) {
  for (const bool by_tool : {false, true}) {
    for (const bool saves : {true, false}) {
      const TempDir dir;
      std::vector<std::string> program = command(
          TRAIN_PROGRAM, dir.path() / "run",
          {"--fail", "throw", "--fail_rank", "1", "--fail_step", "5", "--checkpoint.every_steps", saves ? "2" : "0"});
      program = by_tool ? with({LOCKSTEP_CLI, "run", "--nproc-per-node", "2", "--"}, program)
                        : with(program, {"--nprocs", "2"});
      const auto result = run_program(program);
      EXPECT_EQ(result.code, 1) << result.err;
      const std::string run = (dir.path() / "run").string();
      const std::string text =
          saves ? fmt::format(
                      "step 4 is saved in {}; without the cause of this failure the same command resumes from it", run)
                : fmt::format("nothing is saved in {} yet; the same command trains all steps again", run);
      const auto told = result.err.find(text);
      ASSERT_NE(told, std::string::npos) << result.err;
      EXPECT_EQ(result.err.find("is saved in", told + text.size()), std::string::npos) << result.err;
      EXPECT_THAT(result.err.substr(told), HasSubstr("cannot decode sample 4411")) << "the cause comes last";
    }
  }
}

TEST(SeveralRanks, SayNothingOfSavesThatAreOffOrThatNoStepNeeds) {
  struct Case {
    std::vector<std::string> words;
    std::string why;
  };
  for (const auto& [words, why] :
       {Case{{"--fail_step", "5", "--checkpoint.enabled", "false"}, "nothing is to be saved"},
        Case{{"--fail_step", "0"}, "no step is lost"}}) {
    for (const std::string ranks : {"1", "2"}) {
      const TempDir dir;
      const auto result =
          run_program(with(command(TRAIN_PROGRAM, dir.path() / "run",
                                   {"--nprocs", ranks, "--fail", "throw", "--fail_rank", "0", "--fail_in", "forward"}),
                           words));
      EXPECT_EQ(result.code, 1) << result.err;
      EXPECT_THAT(result.err, Not(HasSubstr("is saved in"))) << why;
    }
  }
}

// The launcher learns it from the rank that failed.
TEST(LockstepRun, TellsOnceWhatIsSavedIfAllRanksFail) {
  const TempDir dir;
  const auto result = run_program(
      with({LOCKSTEP_CLI, "run", "--nproc-per-node", "2", "--"},
           command(TRAIN_PROGRAM, dir.path() / "run",
                   {"--fail", "throw", "--fail_rank=-1", "--fail_step", "5", "--checkpoint.every_steps", "2"})));
  EXPECT_EQ(result.code, 1) << result.err;
  const auto told = result.err.find("step 4 is saved in");
  ASSERT_NE(told, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("is saved in", told + 20), std::string::npos) << result.err;
  const auto cause = result.err.find("error: rank");
  EXPECT_TRUE(cause != std::string::npos && told < cause) << result.err;
}

TEST(Start, InADeletedDirectoryIsRefusedInPlainWords) {
  const TempDir dir;
  const auto program =
      with({LOCKSTEP_CLI, "run", "--nproc-per-node", "1", "--"}, command(TRAIN_PROGRAM, dir.path() / "run", {}));
  const auto result =
      run_program(with({"sh", "-c", "mkdir gone && cd gone && rmdir ../gone && exec \"$0\" \"$@\""}, program), {},
                  dir.path().string());
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("error: found no working directory"));
}

// Every rank throws, in any order: the rank that caused the failure is named.
TEST(SeveralRanks, NameTheOneWhoseParametersDiffer) {
  for (const auto& [rank, named] : {std::pair{2, 2}, {0, 0}, {1, 1}}) {
    const TempDir dir;
    const auto result = run_program(
        command(TRAIN_PROGRAM, dir.path() / "run",
                {"--nprocs", "3", "--fail", "change", "--fail_step", "5", "--fail_rank", std::to_string(rank)}));
    EXPECT_EQ(result.code, 78) << result.err;
    EXPECT_THAT(result.err, testing::ContainsRegex("error: rank " + std::to_string(named) +
                                                   " .* the replicas have diverged: rank " + std::to_string(named) +
                                                   " has [a-z.]+ [0-9a-f]{16} \\(name and digest\\)"));
  }
}

TEST(SeveralRanks, NameTheOneThatCannotSave) {
  for (int round = 0; round < rounds(3, 20); ++round) {
    const TempDir dir;
    const auto run = dir.path() / "run";
    Process process(command(TRAIN_PROGRAM, run, {"--nprocs", "3", "--max_epochs", "10000"}));
    ASSERT_TRUE(process.wait_for("step 3 ")) << process.err();
    std::filesystem::rename(run / "checkpoints", run / "elsewhere");
    std::ofstream(run / "checkpoints") << "a file";
    process.signal(SIGTERM);
    const auto result = process.wait();
    EXPECT_EQ(result.code, 74) << result.err;
    EXPECT_THAT(result.err, HasSubstr("error: rank 0 (")) << "it alone writes";
  }
}

// A terminal sends Ctrl-C to a whole process group: ranks have their own groups, so only the supervisor receives it.
TEST(Launch, GivesEveryRankAProcessGroupOfItsOwn) {
  const TempDir dir;
  Process process(command(TRAIN_PROGRAM, dir.path() / "run", {"--nprocs", "2", "--max_epochs", "10000"}));
  ASSERT_TRUE(process.wait_for("step 3 ")) << process.err();
  for (const auto rank : Process::ranks_of(process.pid())) {
    EXPECT_EQ(getpgid(rank), rank) << "a rank shares its process group with another process";
  }
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait().code, 75);
}

// For top, ps and pkill. Kernels before 6.14 name the ranks after a descriptor.
TEST(Launch, GivesItsRanksTheNameOfTheProgram) {
  LOCKSTEP_REQUIRE(Requirements().that(run_program({"bash", "-c", "true"}).code == 0, "no bash"));
  const TempDir dir;
  Process process(with({"bash", "-c", "exec -a my_training \"$0\" \"$@\""},
                       command(TRAIN_PROGRAM, dir.path() / "run", {"--nprocs", "2", "--max_epochs", "10000"})));
  ASSERT_TRUE(process.wait_for("step 3 ")) << process.err();
  for (const auto rank : Process::ranks_of(process.pid())) {
    EXPECT_EQ(Process::name_of(rank), "my_training");
  }
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait().code, 75);
}

// Without a launcher of ours the ranks themselves say it, before their errors.
TEST(SeveralRanks, TellOnceWhatIsSavedIfAllOfThemFail) {
  const TempDir dir;
  const auto ranks = start_ranks(
      2, command(TRAIN_PROGRAM, dir.path() / "run",
                 {"--fail", "throw", "--fail_rank=-1", "--fail_step", "5", "--checkpoint.every_steps", "2"}));
  std::string all;
  for (const auto& rank : ranks) {
    all += rank->wait(Process::Seconds(30)).err;
  }
  const auto told = all.find("step 4 is saved in");
  ASSERT_NE(told, std::string::npos) << all;
  EXPECT_EQ(all.find("is saved in", told + 20), std::string::npos) << all;
  EXPECT_THAT(all, HasSubstr("cannot decode sample 4411"));
}

}  // namespace
}  // namespace lockstep
