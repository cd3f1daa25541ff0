// A program gives the same bytes under torchrun as under our own launcher.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/mapped.h"
#include "environment/process_name.h"
#include "support/plain_ranks.h"
#include "support/python.h"
#include "support/requirements.h"
#include "support/runs.h"
#include "support/slurm_task.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

TEST(Torchrun, EndsWithTheSameWeights) {
  const std::string torchrun = find_torchrun(LIBTORCH_DIR);
  LOCKSTEP_REQUIRE(Requirements().that(!torchrun.empty(), "no torchrun beside the LibTorch at " LIBTORCH_DIR));
  const TempDir dir;
  const std::vector<std::string> flags{"--max_epochs", "2", "--data.workers", "1"};
  auto own = command(TRAIN_PROGRAM, dir.path() / "own", flags);
  own.insert(own.end(), {"--nprocs", "2"});
  ASSERT_EQ(run_program(own).code, 0);

  const auto program = command(TRAIN_PROGRAM, dir.path() / "torchrun", flags);
  // The same number of threads as our launcher gives: sums depend on it.
  const auto result = run_program(under_torchrun(LIBTORCH_DIR, 2, {}, program), {{"OMP_NUM_THREADS", "1"}});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("torchrun"));
  EXPECT_EQ(final_state(dir.path() / "own"), final_state(dir.path() / "torchrun"));
}

TEST(OwnLauncher, GivesItsRanksTheWordsThatTheProgramTookOutOfArgv) {
  const TempDir dir;
  const auto run = (dir.path() / "run").string();
  const auto result = run_program({TRAIN_PROGRAM, "-i", "case7.nml", "--run_dir", run, "--compute_setup", "cpu",
                                   "--nprocs", "2", "--fast_dev_run", "1"});
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* rank : {"[rank0]", "[rank1]"}) {
    EXPECT_THAT(result.err, HasSubstr(std::string(rank) + ": reads case7.nml"));
  }
}

TEST(OwnLauncher, TrainsWhatItsTableSaidThoughTheFileHasChanged) {
  const TempDir dir;
  const auto file = dir.path() / "x.toml";
  const auto settings = [](const std::string& run, const std::string& lr) {
    return "run_name = \"" + run + "\"\nmax_steps = 12\nmax_epochs = 0\n[optim]\nlr = " + lr + "\n";
  };
  std::ofstream(file) << settings("first", "0.02");
  Process training({TRAIN_PROGRAM, "--config", file.string(), "--compute_setup", "cpu", "--nprocs", "2", "--work_ms",
                    "100", "--dist.max_restarts", "1", "--checkpoint.every_steps", "2"},
                   {}, dir.path().string());
  ASSERT_TRUE(training.wait_for("step 5 ")) << training.err();
  std::ofstream(file) << settings("second", "0.5");
  const auto ranks = Process::ranks_of(training.pid());
  ASSERT_EQ(ranks.size(), 2U);
  kill(ranks[1], SIGKILL);
  const auto result = training.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("restart 1 now ("));
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "runs" / "second"));
  const auto rates = metric(dir.path() / "runs" / "first", "lr");
  ASSERT_TRUE(rates.contains(12)) << result.err;
  EXPECT_NEAR(rates.at(12), 0.02, 1e-9);
}

// Such as an evaluation: it trains alone, though it inherits RANK.
TEST(OwnLauncher, IsNotThatOfAProgramThatARankStarts) {
  const std::string child = std::string("'") + TRAIN_PROGRAM + "' --compute_setup cpu --dry-run >&2; cat > /dev/null";
  for (const bool by_tool : {false, true}) {
    const TempDir dir;
    const auto words =
        command(TRAIN_PROGRAM, dir.path() / "run", {"--max_epochs", "100000", "--report.command", child});
    Process training(by_tool ? with({LOCKSTEP_CLI, "run", "--nproc-per-node", "2", "--"}, words)
                             : with(words, {"--nprocs", "2"}));
    EXPECT_TRUE(training.wait_for("launch       alone")) << training.err();
    training.signal(SIGTERM);
    EXPECT_EQ(training.wait().code, 75);
  }
}

// Python's subprocess closes the descriptors; a script may use their numbers itself.
TEST(LockstepRun, TrainsThoughAScriptHasTakenTheDescriptors) {
  const TempDir dir;
  for (const std::string how : {"3>&- 4>&- 5>&-", "3>/dev/null"}) {
    const auto run = dir.path() / ("run_" + std::to_string(how.size()));
    const std::string script = "\"$0\" \"$@\" " + how;
    const auto result = run_program(with({LOCKSTEP_CLI, "run", "--nproc-per-node", "2", "--", "sh", "-c", script},
                                         command(TRAIN_PROGRAM, run, {"--max_epochs", "1"})));
    EXPECT_EQ(result.code, 0) << how << '\n' << result.err;
    EXPECT_THAT(result.err, HasSubstr("warning: the descriptors of lockstep run are closed here")) << how;
    EXPECT_THAT(result.err, HasSubstr("rank 1 of 2 on host ")) << how;
    EXPECT_FALSE(newest_checkpoint(run).empty()) << how;
  }
}

/// Agents of torchrun that start 2 ranks and 1 rank.
TEST(Torchrun, MayStartDifferentNumbersOfRanksOnItsNodes) {
  const std::string torchrun = find_torchrun(LIBTORCH_DIR);
  LOCKSTEP_REQUIRE(Requirements().that(!torchrun.empty(), "no torchrun beside the LibTorch at " LIBTORCH_DIR));
  const TempDir dir;
  const std::vector<std::string> flags{"--max_epochs", "2", "--data.workers", "1"};
  const std::string endpoint = "127.0.0.1:" + free_port();
  const auto agent = [&](const char* ranks) {
    std::vector<std::string> words{torchrun,           "--no-python", "--nnodes",        "2",
                                   "--nproc-per-node", ranks,         "--rdzv-backend",  "c10d",
                                   "--rdzv-id",        "unequal",     "--rdzv-endpoint", endpoint};
    const auto program = command(TRAIN_PROGRAM, dir.path() / "torchrun", flags);
    words.insert(words.end(), program.begin(), program.end());
    return std::make_unique<Process>(words, Process::Environment{{"OMP_NUM_THREADS", "1"}});
  };
  const auto larger = agent("2");
  const auto smaller = agent("1");
  const auto first = larger->wait();
  const auto second = smaller->wait();
  ASSERT_EQ(first.code, 0) << first.err;
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(first.err + second.err, HasSubstr("torchrun, 3 ranks on 2 nodes"));
  ASSERT_EQ(run_program(command(TRAIN_PROGRAM, dir.path() / "own",
                                {"--max_epochs", "2", "--data.workers", "1", "--nprocs", "3", "--backend", "gloo"}),
                        {{"OMP_NUM_THREADS", "1"}})
                .code,
            0);
  EXPECT_EQ(final_state(dir.path() / "own"), final_state(dir.path() / "torchrun"));
}

/// One task of Slurm per node, of which each starts the ranks of its node.
TEST(SlurmTasks, MayStartDifferentNumbersOfRanksOnTheirNodes) {
  const TempDir dir;
  const std::string port = free_port();
  const auto task = [&](int node, const std::string& ranks) {
    Process::Environment variables = slurm_task(node, port);
    variables["OMP_NUM_THREADS"] = "1";
    return std::make_unique<Process>(command(TRAIN_PROGRAM, dir.path() / "slurm",
                                             {"--max_epochs", "2", "--compute_setup", "cpu", "--devices", ranks}),
                                     variables);
  };
  const auto smaller = task(1, "1");
  const auto larger = task(0, "2");
  const auto first = larger->wait();
  const auto second = smaller->wait();
  ASSERT_EQ(first.code, 0) << first.err;
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(first.err, HasSubstr("x 3 ranks")) << "the table counts the ranks of all nodes";
  ASSERT_EQ(run_program(
                command(TRAIN_PROGRAM, dir.path() / "own", {"--max_epochs", "2", "--nprocs", "3", "--backend", "gloo"}),
                {{"OMP_NUM_THREADS", "1"}})
                .code,
            0);
  EXPECT_EQ(final_state(dir.path() / "own"), final_state(dir.path() / "slurm"));
}

/// As perceptrain's scripts export them.
TEST(Environment, NeedsNoLocalWorldSizeAndPrintsWhereEachRankRuns) {
  const TempDir dir;
  const auto ranks =
      start_ranks(2, command(TRAIN_PROGRAM, dir.path() / "run", {"--max_epochs", "1"}), [](PlainRank& rank) {
        rank.variables.erase("LOCAL_WORLD_SIZE");
        rank.variables["MASTER_ADDR"] = "localhost";
      });
  std::string places;
  for (const auto& rank : ranks) {
    const auto result = rank->wait();
    EXPECT_EQ(result.code, 0) << result.err;
    places += "rank " + std::to_string(&rank - ranks.data()) + " of 2 on host " + host_name() + ", CPU, pid " +
              std::to_string(rank->pid()) + "\n";
  }
  EXPECT_THAT(ranks[0]->err(), HasSubstr("\n" + places));
  EXPECT_EQ(ranks[0]->err().find(places), ranks[0]->err().rfind(places)) << "once";
  EXPECT_THAT(ranks[1]->err(), testing::Not(HasSubstr(" on host "))) << "rank 0 prints for all";
}

/// Rank 1 may have only small files, and shared memory is one.
std::vector<Process::Result> with_a_limited_rank(const std::filesystem::path& run, const std::vector<std::string>& more,
                                                 const std::string& limit) {
  const auto ranks =
      start_ranks(3, command(TRAIN_PROGRAM, run, with({"--max_epochs", "1"}, more)), [&](PlainRank& rank) {
        if (rank.rank == 1) {
          rank.words = with({"sh", "-c", "ulimit -f " + limit + " && exec \"$0\" \"$@\""}, rank.words);
        }
      });
  return mapped(ranks, [](const auto& rank) { return rank->wait(); });
}

TEST(Environment, RanksLeaveSharedMemoryIfOneOfThemCannotHaveIt) {
  const TempDir dir;
  const std::vector<Process::Result> limited = with_a_limited_rank(dir.path() / "auto", {}, "24");
  for (const auto& result : limited) {
    EXPECT_EQ(result.code, 0) << result.err;
  }
  EXPECT_THAT(limited[0].err, testing::ContainsRegex("gradients go through Gloo, not through shared memory: rank 1: "
                                                     "cannot have .* of shared memory \\(ulimit -f"));
  EXPECT_THAT(limited[1].err + limited[2].err, testing::Not(HasSubstr("go through Gloo"))) << "once";
  for (const auto& result : with_a_limited_rank(dir.path() / "gloo", {"--backend", "gloo"}, "24")) {
    EXPECT_EQ(result.code, 0) << result.err;
  }
  EXPECT_EQ(final_state(dir.path() / "auto"), final_state(dir.path() / "gloo"));
  for (const auto& result : with_a_limited_rank(dir.path() / "shared", {"--backend", "shm"}, "24")) {
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr("--backend shm: rank 1: cannot have "));
  }
  const std::vector<Process::Result> enough = with_a_limited_rank(dir.path() / "enough", {}, "100000");  // the control
  EXPECT_EQ(enough[0].code, 0) << enough[0].err;
  EXPECT_THAT(enough[0].err, testing::Not(HasSubstr("go through Gloo")));
}

TEST(LogLevel, LeavesOutTheLinesBelowIt) {
  const TempDir dir;
  for (const auto& [level, has_info, has_warning] : std::vector<std::tuple<std::string, bool, bool>>{
           {"info", true, true}, {"warning", false, true}, {"error", false, false}}) {
    const auto result =
        run_program(command(TRAIN_PROGRAM, dir.path() / "run-{n}",
                            {"--nprocs", "2", "--max_steps", "3", "--max_epochs", "0", "--fail_in", "loss",
                             "--fail_step", "1", "--optim.non_finite", "warn", "--report.log_level", level}));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err.find("run directory: ") != std::string::npos, has_info) << level << '\n' << result.err;
    EXPECT_EQ(result.err.find("warning: ") != std::string::npos, has_warning) << level << '\n' << result.err;
  }
}

TEST(Environment, PartialVariablesAreRefused) {
  const TempDir dir;
  const auto result = run_program(command(TRAIN_PROGRAM, dir.path() / "run", {}), {{"RANK", "1"}, {"LOCAL_RANK", "x"}});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(result.err, HasSubstr("LOCAL_RANK"));
}

TEST(Environment, ContradictingRankCountIsRefused) {
  const TempDir dir;
  const auto result =
      run_program(command(TRAIN_PROGRAM, dir.path() / "run", {"--nprocs", "3"}), rank_variables(0, 2, free_port()));
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("3"));
  EXPECT_THAT(result.err, HasSubstr("WORLD_SIZE"));
}

TEST(Environment, MissingRanksAreNamed) {
  const TempDir dir;
  const auto result = run_program(command(TRAIN_PROGRAM, dir.path() / "run", {"--dist.init_timeout_s", "1"}),
                                  rank_variables(0, 3, free_port()));
  EXPECT_EQ(result.code, 124) << result.err;
  EXPECT_THAT(result.err, HasSubstr("2 of 3 ranks did not start"));
  EXPECT_THAT(result.err, HasSubstr("missing ranks 1-2"));
}

}  // namespace
}  // namespace lockstep
