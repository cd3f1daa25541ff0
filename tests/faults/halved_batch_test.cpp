// Memory runs out in a rank: each later start of the run takes a smaller micro-batch, whoever starts the ranks.
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/mapped.h"
#include "support/plain_ranks.h"
#include "support/python.h"
#include "support/requirements.h"
#include "support/runs.h"
#include "support/slurm_task.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::Field;
using testing::HasSubstr;
using testing::Not;
using Path = std::filesystem::path;
using Words = std::vector<std::string>;
using Processes = std::vector<std::unique_ptr<Process>>;

const Process::Environment kOneThread{{"OMP_NUM_THREADS", "1"}};  // sums depend on the number of threads

class HalvedBatch : public testing::Test {
 protected:
  static Words train(const Path& run, const Words& more) {
    return command(TRAIN_PROGRAM, run,
                   with({"--max_epochs", "2", "--batch_size", "8", "--global_batch_size", "16"}, more));
  }
  /// Two ranks of which the second has memory for so many samples.
  static Words halving(const Path& run, const std::string& fits, const Words& more = {}) {
    return train(run, with({"--memory.halve_batch", "--fits", fits, "--fail_step", "0", "--fail_in", "nowhere",
                            "--fail_rank", "1"},
                           more));
  }
  Path run() const { return dir_.path() / "run"; }
  Path limit() const { return run() / "batch_limit.json"; }
  /// A run that has the micro-batch from the beginning.
  std::map<std::string, std::string> straight_state(const std::string& batch_size) const {
    const Path run = dir_.path() / "straight";
    const auto result = run_program(train(run, {"--nprocs", "2", "--batch_size", batch_size}), kOneThread);
    EXPECT_EQ(result.code, 0) << result.err;
    return final_state(run);
  }

  TempDir dir_;
};

// --- every launcher ---

/// Starts the program as two ranks.
struct Launcher {
  std::string name;
  std::function<Processes(const Words&)> start;
  std::vector<int> codes;  // of its processes when memory ran out in the second rank
};

Process::Environment with_one_thread(Process::Environment variables) {
  variables.insert(kOneThread.begin(), kOneThread.end());
  return variables;
}

Processes start_slurm_tasks(const Words& program) {
  const std::string port = free_port();
  Processes tasks;
  for (const int node : {0, 1}) {
    tasks.push_back(
        std::make_unique<Process>(with(program, {"--devices", "1"}), with_one_thread(slurm_task(node, port))));
  }
  return tasks;
}

Processes start_on_two_machines(const Words& program) {
  const std::string port = free_port();
  Processes launchers;
  for (const int node : {0, 1}) {
    launchers.push_back(std::make_unique<Process>(
        with({LOCKSTEP_CLI, "run", "--nnodes", "2", "--node-rank", std::to_string(node), "--nproc-per-node", "1",
              "--master-addr", "127.0.0.1", "--master-port", port, "--"},
             program),
        kOneThread));
  }
  return launchers;
}

Processes start_torchrun(const Words& program) {
  Processes agents;
  agents.push_back(std::make_unique<Process>(under_torchrun(LIBTORCH_DIR, 2, {}, program), kOneThread));
  return agents;
}

class HalvedBatchUnder : public HalvedBatch, public testing::WithParamInterface<Launcher> {};

// Nothing starts the ranks again but the person who reads the message.
TEST_P(HalvedBatchUnder, IsTakenByTheNextStart) {
  if (GetParam().name == "torchrun") {
    LOCKSTEP_REQUIRE(Requirements().that(!find_torchrun(LIBTORCH_DIR).empty(), "no torchrun beside the LibTorch"));
  }
  const auto start = [&] {
    const Processes processes = GetParam().start(halving(run(), "4"));
    return mapped(processes, [](const auto& process) { return process->wait(); });
  };
  const auto first = start();
  EXPECT_EQ(mapped(first, &Process::Result::code), GetParam().codes) << first.front().err << first.back().err;
  EXPECT_THAT(first.back().err, HasSubstr("  each further start has smaller micro-batches: " + limit().string() +
                                          " says that 8 samples did not fit"));
  const auto second = start();
  EXPECT_THAT(second, Each(Field(&Process::Result::code, 0))) << second.front().err << second.back().err;
  const std::string text = second.front().err + second.front().out;  // torchrun's ranks share its streams
  EXPECT_THAT(text, HasSubstr("micro-batches have 4 samples instead of 8 (--memory.halve_batch): 8 did not fit"));
  EXPECT_THAT(text, HasSubstr("batch after memory ran out: 16 = 4 per rank x 2 micro-batches x 2 ranks"));
  EXPECT_EQ(final_state(run()), straight_state("4"));
}

INSTANTIATE_TEST_SUITE_P(
    EachLauncher, HalvedBatchUnder,
    testing::Values(Launcher{"no_launcher", [](const Words& program) { return start_ranks(2, program); }, {76, 77}},
                    Launcher{"slurm_tasks", start_slurm_tasks, {76, 77}},
                    Launcher{"two_machines", start_on_two_machines, {76, 77}},
                    Launcher{"torchrun", start_torchrun, {1}}),
    [](const auto& test) { return test.param.name; });

// --- launchers that restart ---

TEST_F(HalvedBatch, IsTakenByTheRestartsOfTorchrun) {
  LOCKSTEP_REQUIRE(Requirements().that(!find_torchrun(LIBTORCH_DIR).empty(), "no torchrun beside the LibTorch"));
  // --fresh applies once, for any number of restarts.
  const auto result = run_program(
      under_torchrun(LIBTORCH_DIR, 2, {"--max-restarts", "2"}, halving(run(), "2", {"--fresh"})), kOneThread);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("batch after memory ran out: 16 = 4 per rank x 2 micro-batches x 2 ranks"));
  EXPECT_THAT(result.err, HasSubstr("batch after memory ran out: 16 = 2 per rank x 4 micro-batches x 2 ranks"));
  EXPECT_EQ(final_state(run()), straight_state("2"));
  // Control: without the setting each restart runs out of memory again.
  const auto refused = run_program(under_torchrun(LIBTORCH_DIR, 2, {"--max-restarts", "2"},
                                                  halving(dir_.path() / "refused", "2", {"--no-memory.halve_batch"})),
                                   kOneThread);
  EXPECT_NE(refused.code, 0);
  EXPECT_FALSE(std::filesystem::exists(dir_.path() / "refused" / "batch_limit.json"));
}

TEST_F(HalvedBatch, IsTakenByLaterStartsOfAProgramThatStartsItsRanks) {
  const auto start = [&](const Words& more) {
    return run_program(halving(run(), "2", with({"--nprocs", "2"}, more)), kOneThread);
  };
  const auto first = start({});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("restart 2 now, with half the micro-batch: rank 1"));
  EXPECT_EQ(final_state(run()), straight_state("2"));
  const auto longer = start({"--max_epochs", "3"});
  ASSERT_EQ(longer.code, 0) << longer.err;
  EXPECT_THAT(longer.err, HasSubstr("resuming from step"));
  EXPECT_THAT(longer.err, HasSubstr("batch        16 = 2 per rank x 4 micro-batches x 2 ranks"));
  EXPECT_THAT(longer.err, Not(HasSubstr("restart 1 now")));
  const auto fresh = start({"--fresh"});
  ASSERT_EQ(fresh.code, 0) << fresh.err;
  EXPECT_THAT(fresh.err, HasSubstr("batch        16 = 8 per rank x 1 micro-batch x 2 ranks"));
  EXPECT_THAT(fresh.err, HasSubstr("restart 2 now, with half the micro-batch: rank 1"));
}

// --- what it depends on ---

TEST_F(HalvedBatch, CountsForTheSameSettingsOnly) {
  const Words two{"--nprocs", "2"};
  const std::string in_one_batch = "batch        16 over 2 ranks (8 each), in 1 micro-batch of at most 16";
  ASSERT_EQ(run_program(halving(run(), "4", two), kOneThread).code, 0);
  const auto planned = [&](const Words& more) {
    return run_program(halving(run(), "4", with(with(two, {"--dry-run"}), more))).out;
  };
  EXPECT_THAT(planned({}), HasSubstr("batch        16 = 4 per rank x 2 micro-batches x 2 ranks"));
  EXPECT_THAT(planned({}), HasSubstr("as " + limit().string() +
                                     " says; delete this file, or use --fresh or another "
                                     "--batch_size, to begin with 8 again"));
  EXPECT_THAT(planned({"--batch_size", "16"}), HasSubstr(in_one_batch));
  EXPECT_THAT(planned({"--fresh"}), HasSubstr("batch        16 = 8 per rank x 1 micro-batch x 2 ranks"));
  EXPECT_THAT(planned({"--no-memory.halve_batch"}),
              HasSubstr("batch        16 = 8 per rank x 1 micro-batch x 2 ranks"));
  // Another size is tried again, and then it is the one that is remembered.
  const auto other =
      run_program(halving(run(), "4", with(two, {"--batch_size", "16", "--max_epochs", "3"})), kOneThread);
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(other.err, HasSubstr("restart 1 now, with half the micro-batch: rank 1"));
  EXPECT_THAT(planned({"--batch_size", "16"}), HasSubstr("batch        16 = 4 per rank x 2 micro-batches x 2 ranks"));
  EXPECT_THAT(planned({}), HasSubstr("batch        16 = 8 per rank x 1 micro-batch x 2 ranks"));
  // As if it were of another machine.
  std::string json = read_text(limit());
  json.replace(json.find("CPU"), 3, "TPU");
  std::ofstream(limit(), std::ios::trunc) << json;
  EXPECT_THAT(planned({"--batch_size", "16"}), HasSubstr(in_one_batch));
  // Without the file the given size is tried again; a damaged one is named.
  std::ofstream(limit(), std::ios::trunc) << "{";
  const auto damaged =
      run_program(halving(run(), "4", with(two, {"--batch_size", "16", "--max_epochs", "4"})), kOneThread);
  ASSERT_EQ(damaged.code, 0) << damaged.err;
  EXPECT_THAT(damaged.err, HasSubstr("is damaged, so the given batch_size is tried again"));
  EXPECT_THAT(damaged.err, HasSubstr("restart 1 now, with half the micro-batch: rank 1"));
}

// The second machine, whose memory ran out, has its own disk; all ranks get the same plan.
TEST_F(HalvedBatch, IsKnownToRanksWithoutACommonDisk) {
  const auto start = [&](const Words& more) {
    const auto ranks = start_ranks(2, halving(run(), "4", more), [&](PlainRank& rank) {
      rank.words = with(rank.words, {"--run_dir", (dir_.path() / fmt::format("disk_{}", rank.rank)).string()});
    });
    return mapped(ranks, [](const auto& rank) { return rank->wait(); });
  };
  const Path kept = dir_.path() / "disk_1" / "batch_limit.json";
  EXPECT_THAT(mapped(start({}), &Process::Result::code), testing::ElementsAre(76, 77));
  EXPECT_TRUE(std::filesystem::exists(kept));
  EXPECT_FALSE(std::filesystem::exists(dir_.path() / "disk_0" / "batch_limit.json"));
  const auto second = start({});
  EXPECT_THAT(second, Each(Field(&Process::Result::code, 0))) << second.front().err << second.back().err;
  EXPECT_THAT(second.front().err, HasSubstr("batch after memory ran out: 16 = 4 per rank x 2 micro-batches x 2 ranks"));
  EXPECT_EQ(final_state(dir_.path() / "disk_0"), straight_state("4"));
  EXPECT_THAT(start({"--fresh", "--fits", "0"}), Each(Field(&Process::Result::code, 0)));
  EXPECT_FALSE(std::filesystem::exists(kept)) << "of the run that was moved away";
}

// Nothing can be remembered, so nothing may start the ranks again and again.
TEST_F(HalvedBatch, IsNotAskedForWhereItCannotBeRemembered) {
  const auto expect_one_attempt = [&](const Words& more) {
    SCOPED_TRACE(more.front());
    const auto result = run_program(halving(run(), "4", with({"--nprocs", "2"}, more)), kOneThread);
    EXPECT_EQ(result.code, 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr("--memory.halve_batch remembers nothing: this run writes no files"));
    EXPECT_THAT(result.err, Not(HasSubstr("restart 1 now")));
    EXPECT_FALSE(std::filesystem::exists(limit()));
  };
  expect_one_attempt({"--fast_dev_run", "2"});
  EXPECT_FALSE(std::filesystem::exists(run()));
  // It locks the directory, in which an old run may be.
  expect_one_attempt({"--fresh", "--no-checkpoint.enabled", "--no-report.jsonl", "--no-report.csv"});
}

}  // namespace
}  // namespace lockstep
