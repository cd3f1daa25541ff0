// Two network namespaces are two machines: torchrun's agents or our launchers meet over the network between them, a
// rank dies or the network does, and the run ends as if nothing had happened or says what did.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/network.h"
#include "support/python.h"
#include "support/requirements.h"
#include "support/runs.h"

namespace lockstep {
namespace {

class TwoMachines : public testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_REQUIRE(Requirements().that(network_.works(), "no network namespaces: they need root and iproute2"));
  }

  std::vector<std::string> agent(int machine, const std::filesystem::path& run) const {
    std::vector<std::string> words{find_torchrun(LIBTORCH_DIR),
                                   "--nnodes",
                                   "2",
                                   "--nproc-per-node",
                                   "1",
                                   "--no-python",
                                   "--rdzv-backend",
                                   "c10d",
                                   "--rdzv-endpoint",
                                   Network::address(0) + ":29400",
                                   "--rdzv-id",
                                   "two-machines",
                                   "--rdzv-conf",
                                   machine == 0 ? "is_host=1" : "is_host=0",
                                   "--local-addr",
                                   Network::address(machine),
                                   "--max-restarts",
                                   "2"};
    const auto program = command(
        TRAIN_PROGRAM, run, {"--max_epochs", "40", "--checkpoint.every_steps", "50", "--report.every_steps", "50"});
    words.insert(words.end(), program.begin(), program.end());
    return network_.on(machine, words);
  }

  /// Our launcher on one machine, with one rank.
  std::vector<std::string> launcher(int machine, const std::filesystem::path& run,
                                    const std::vector<std::string>& more = {"--checkpoint.every_steps", "50"}) const {
    std::vector<std::string> words{LOCKSTEP_CLI,
                                   "run",
                                   "--nnodes",
                                   "2",
                                   "--nproc-per-node",
                                   "1",
                                   "--node-rank",
                                   std::to_string(machine),
                                   "--master-addr",
                                   Network::address(0),
                                   "--rdzv-id",
                                   "two-machines",
                                   "--"};
    const auto program = command(TRAIN_PROGRAM, run, with({"--max_epochs", "40", "--report.every_steps", "50"}, more));
    words.insert(words.end(), program.begin(), program.end());
    return network_.on(machine, words);
  }

  /// The process that trains below an agent.
  static pid_t worker_of(pid_t agent) {
    std::vector<pid_t> children = Process::children_of(agent);
    return children.empty() ? -1 : children.front();
  }

  Network network_;
  const Process::Environment threads_{{"OMP_NUM_THREADS", "1"}};
};

TEST_F(TwoMachines, RestartAfterAKilledRankAndEndWithTheSameBytes) {
  LOCKSTEP_REQUIRE(
      Requirements().that(!find_torchrun(LIBTORCH_DIR).empty(), "no torchrun beside the LibTorch at " LIBTORCH_DIR));
  const TempDir dir;
  {
    Process first(agent(0, dir.path() / "straight"), threads_);
    Process second(agent(1, dir.path() / "straight"), threads_);
    ASSERT_EQ(first.wait().code, 0) << first.err();
    ASSERT_EQ(second.wait().code, 0) << second.err();
  }
  Process first(agent(0, dir.path() / "killed"), threads_);
  Process second(agent(1, dir.path() / "killed"), threads_);
  ASSERT_TRUE(first.wait_for("step 100 ")) << first.err();
  const pid_t victim = worker_of(second.pid());
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  const auto one = first.wait(Process::Seconds(180));
  const auto two = second.wait(Process::Seconds(180));
  ASSERT_EQ(one.code, 0) << one.err;
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_THAT(one.err, testing::HasSubstr("resuming from step"));
  EXPECT_EQ(final_state(dir.path() / "straight"), final_state(dir.path() / "killed"));
}

TEST_F(TwoMachines, OutliveANetworkThatIsGoneForTwoSeconds) {
  const TempDir dir;
  for (const std::string name : {"straight", "disturbed"}) {
    Process first(launcher(0, dir.path() / name), threads_);
    Process second(launcher(1, dir.path() / name), threads_);
    if (name == "disturbed") {
      ASSERT_TRUE(first.wait_for("step 100 ")) << first.err();
      network_.pull_cable();
      EXPECT_FALSE(first.ended_within(std::chrono::seconds(2)));
      network_.plug_cable();
    }
    EXPECT_EQ(first.wait().code, 0) << first.err();
    EXPECT_EQ(second.wait().code, 0) << second.err();
  }
  EXPECT_EQ(final_state(dir.path() / "straight"), final_state(dir.path() / "disturbed"));
}

TEST_F(TwoMachines, EndWhenTheNetworkStaysGone) {
  // In a save more often than not; in a step, with less patience than the default.
  const std::vector<std::string> save{"--checkpoint.every_steps", "1"};
  const std::vector<std::string> step{"--checkpoint.every_steps", "1000", "--dist.heartbeat_timeout_s", "3"};
  for (const auto& flags : {save, step}) {
    const TempDir dir;
    Process first(launcher(0, dir.path() / "run", flags), threads_);
    Process second(launcher(1, dir.path() / "run", flags), threads_);
    ASSERT_TRUE(first.wait_for("step 100 ")) << first.err();
    network_.pull_cable(1);
    for (Process* machine : {&first, &second}) {
      const auto result = machine->wait(Process::Seconds(40));
      EXPECT_EQ(result.code, 76) << result.err;
      EXPECT_THAT(result.err, testing::ContainsRegex("stopped: (node 1|the rendezvous store) has not (been heard "
                                                     "of|answered) for (10|3) s"));
    }
    network_.plug_cable(1);
  }
}

TEST_F(TwoMachines, HearOfEachOthersFailures) {
  const TempDir dir;
  const std::vector<std::string> failing{"--fail", "throw", "--fail_rank", "1", "--fail_step", "60"};
  Process first(launcher(0, dir.path() / "run", failing), threads_);
  Process second(launcher(1, dir.path() / "run", failing), threads_);
  const auto cause = second.wait();
  const auto consequence = first.wait(Process::Seconds(10));
  EXPECT_EQ(cause.code, 1) << cause.err;
  EXPECT_EQ(consequence.code, 76) << consequence.err;
  EXPECT_THAT(consequence.err, testing::ContainsRegex("rank 0 .* stopped: rank 1 \\(pid [0-9]+@[^)]+\\) failed: "));
}

}  // namespace
}  // namespace lockstep
