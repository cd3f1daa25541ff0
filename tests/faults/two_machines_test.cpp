// Two network namespaces simulate two machines with torchrun's agents or our launchers. A rank or the network fails,
// and the run ends as without the failure or reports it.
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/network.h"
#include "support/python.h"
#include "support/requirements.h"
#include "support/runs.h"
#include "support/sweep.h"

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

  /// A network failure and the expected result.
  struct Fault {
    std::vector<std::string> flags{};     // of the affected run
    std::string after{};                  // output line of machine 0
    std::chrono::milliseconds moment{0};  // from that line to the failure
    std::function<void()> strike{};
    std::function<void()> mend{};
    std::chrono::seconds limit{0};      // time until both have ended
    std::array<std::string, 2> says{};  // expected messages of the machines
  };

  /// Runs both machines to the end, each with its own disk; returns their results.
  std::map<std::string, std::string> finish(const std::filesystem::path& disks) const {
    Process first(launcher(0, disks / "0", kShort), threads_);
    Process second(launcher(1, disks / "1", kShort), threads_);
    EXPECT_EQ(first.wait().code, 0) << first.err();
    EXPECT_EQ(second.wait().code, 0) << second.err();
    return final_state(disks / "0");
  }

  /// "": both machines end in time with 76 and the reason, no process is left, only machine 0 has saved, and after the
  /// repair the same commands resume and end with the bytes of the `straight` run. Otherwise: the difference.
  std::string problems(const Fault& fault, const std::map<std::string, std::string>& straight) const {
    std::string found;
    const auto expect = [&](bool holds, const std::string& what) { found += holds ? "" : what + "; "; };
    const TempDir disks;
    Process first(launcher(0, disks.path() / "0", with(kShort, fault.flags)), threads_);
    Process second(launcher(1, disks.path() / "1", with(kShort, fault.flags)), threads_);
    expect(first.wait_for(fault.after) && !first.ended_within(fault.moment), "not struck in time");
    const auto struck = std::chrono::steady_clock::now();
    fault.strike();
    const std::array results{first.wait(Process::Seconds(60)), second.wait(Process::Seconds(60))};
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - struck;
    expect(time < fault.limit, "ended after " + std::to_string(time.count()) + " s");
    for (const int machine : {0, 1}) {
      const auto& result = results[static_cast<std::size_t>(machine)];
      const auto& says = fault.says[static_cast<std::size_t>(machine)];
      const std::string name = "machine " + std::to_string(machine);
      expect(result.code == 76 && testing::Matches(testing::ContainsRegex(says))(result.err),
             name + " ended with " + std::to_string(result.code) + " and\n" + result.err);
      expect(Process::gone(network_.orphans(machine), std::chrono::seconds(1)), name + " has processes left");
    }
    expect(run_program({LOCKSTEP_CLI, "verify", (disks.path() / "0" / "checkpoints").string()}).code == 0,
           "what was saved is not valid");
    expect(!std::filesystem::exists(disks.path() / "1"), "both machines have saved");
    fault.mend();
    expect(finish(disks.path()) == straight, "the rerun ended with other bytes");
    return found;
  }

  /// Packets from one machine are lost from now on, but packets to it arrive.
  void mute(int machine) const {
    Sweep sweep("machine " + std::to_string(machine) + " unheard");
    const TempDir disks;
    const auto straight = finish(disks.path());
    for (int round = 0; round < rounds(1, 5); ++round) {
      const auto found = problems({.flags = {"--dist.heartbeat_timeout_s", "3"},
                                   .after = "step 100 ",
                                   .moment = std::chrono::milliseconds(sweep.between(0, 100)),
                                   .strike = [&] { network_.mute(machine); },
                                   .mend = [&] { network_.unmute(machine); },
                                   .limit = std::chrono::seconds(6),
                                   .says = {"stopped: node 1 has not been heard of for 3 s",
                                            "stopped: the rendezvous store (has not answered for 3 s|is gone)"}},
                                  straight);
      EXPECT_EQ(found, "");
      sweep.count(found.empty());
    }
  }

  /// Either machine resets the connections between them.
  void reset(const std::string& where, Fault fault) const {
    Sweep sweep("connections reset in a " + where);
    const TempDir disks;
    const auto straight = finish(disks.path());
    for (int point = 0; point < rounds(2, 20); ++point) {
      std::ptrdiff_t broken = 0;
      fault.moment = std::chrono::milliseconds(sweep.between(0, 100));
      fault.strike = [&] { broken = network_.reset_connections(point % 2); };
      fault.mend = [] {};
      fault.says = {
          " failed on rank 0 of 2: |the connection to another rank broke: |stopped: node 1 has not been heard of",
          " failed on rank 1 of 2: |the connection to another rank broke: |the rendezvous store is gone: "};
      const auto found = problems(fault, straight);
      LOCKSTEP_REQUIRE(Requirements().that(broken > 0, "this kernel resets no connections (CONFIG_INET_DIAG_DESTROY)"));
      EXPECT_EQ(found, "");
      sweep.count(found.empty());
    }
  }

  const std::vector<std::string> kShort{"--max_epochs", "12", "--checkpoint.every_steps", "50"};
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
  const auto victims = Process::ranks_of(second.pid());
  ASSERT_EQ(victims.size(), 1U);
  kill(victims.front(), SIGKILL);
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
  // Usually during a save; during a step, with a shorter limit than the default.
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

TEST_F(TwoMachines, EndWhenTheFirstIsNotHeard) { mute(0); }

TEST_F(TwoMachines, EndWhenTheSecondIsNotHeard) { mute(1); }

TEST_F(TwoMachines, EndAtOnceWhenConnectionsAreResetInAStep) {
  // Rank 1 is late in a step that saves nothing: rank 0 waits for it in the all-reduce.
  reset("step", {.flags = {"--report.every_steps", "10", "--fail", "slow", "--fail_in", "forward", "--fail_rank", "1",
                           "--fail_step", "110"},
                 .after = "step 110 ",
                 .limit = std::chrono::seconds(5)});
}

TEST_F(TwoMachines, EndWhenConnectionsAreResetInASave) {
  // A rank that waits in the store for a disconnected rank detects the loss through its heartbeats.
  reset("save", {.flags = {"--checkpoint.every_steps", "1", "--dist.heartbeat_timeout_s", "3"},
                 .after = "step 50 ",
                 .limit = std::chrono::seconds(6)});
}

TEST_F(TwoMachines, SurvivorsWouldBeSeen) {  // control of the tests above
  run_program(network_.on(0, {"sh", "-c", "sleep 1000 > /dev/null 2>&1 &"}));
  EXPECT_FALSE(Process::gone(network_.orphans(0), std::chrono::milliseconds(200)));
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
