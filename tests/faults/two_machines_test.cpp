// Two network namespaces are two machines: torchrun's agents meet over the network between them, a rank dies, and the
// run ends as if nothing had happened.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/python.h"
#include "support/requirements.h"
#include "support/runs.h"

namespace lockstep {
namespace {

/// Two namespaces with an address each and a cable between them.
class Network {
 public:
  Network() : names_{"lockstep-a-" + std::to_string(getpid()), "lockstep-b-" + std::to_string(getpid())} {
    works_ =
        ip({"netns", "add", names_[0]}) && ip({"netns", "add", names_[1]}) &&
        ip({"link", "add", "cable", "netns", names_[0], "type", "veth", "peer", "name", "cable", "netns", names_[1]}) &&
        set_up(0) && set_up(1);
  }
  ~Network() {
    for (const auto& name : names_) {
      ip({"netns", "del", name});
    }
  }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  bool works() const noexcept { return works_; }
  static std::string address(int machine) { return "10.78.0." + std::to_string(machine + 1); }
  std::vector<std::string> on(int machine, const std::vector<std::string>& command) const {
    std::vector<std::string> all{"ip", "netns", "exec", names_[static_cast<std::size_t>(machine)]};
    all.insert(all.end(), command.begin(), command.end());
    return all;
  }

 private:
  static bool ip(std::vector<std::string> words) {
    words.insert(words.begin(), "ip");
    return run_program(words).code == 0;
  }
  bool set_up(int machine) const {
    const auto& name = names_[static_cast<std::size_t>(machine)];
    return ip({"-n", name, "addr", "add", address(machine) + "/24", "dev", "cable"}) &&
           ip({"-n", name, "link", "set", "cable", "up"}) && ip({"-n", name, "link", "set", "lo", "up"});
  }

  std::array<std::string, 2> names_;
  bool works_ = false;
};

class TwoMachines : public testing::Test {
 protected:
  void SetUp() override {
    torchrun_ = find_torchrun(LIBTORCH_DIR);
    LOCKSTEP_REQUIRE(Requirements()
                         .that(!torchrun_.empty(), "no torchrun beside the LibTorch at " LIBTORCH_DIR)
                         .that(network_.works(), "no network namespaces: they need root and iproute2"));
  }

  std::vector<std::string> agent(int machine, const std::filesystem::path& run) const {
    std::vector<std::string> words{torchrun_,
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

  /// The process that trains below an agent.
  static pid_t worker_of(pid_t agent) {
    std::vector<pid_t> children = Process::children_of(agent);
    return children.empty() ? -1 : children.front();
  }

  Network network_;
  std::string torchrun_;
  const Process::Environment threads_{{"OMP_NUM_THREADS", "1"}};
};

TEST_F(TwoMachines, RestartAfterAKilledRankAndEndWithTheSameBytes) {
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

}  // namespace
}  // namespace lockstep
