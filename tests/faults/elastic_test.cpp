// Elastic runs of torchrun: agents leave and return, the others continue with the same global batch.
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/python.h"
#include "support/requirements.h"
#include "support/runs.h"
#include "support/sweep.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

class Elastic : public testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_REQUIRE(Requirements()
                         .that(!find_torchrun(LIBTORCH_DIR).empty(), "no torchrun beside the LibTorch")
                         .that(rounds(0) > 0, "takes a minute, torchrun's: set LOCKSTEP_TEST_ROUNDS=100"));
  }

  static std::vector<std::string> train(const std::filesystem::path& run) {
    // Without dropout, the losses depend only on the global batch, not on the world size.
    return command(TRAIN_PROGRAM, run,
                   {"--global_batch_size", "8", "--dropout", "0", "--fp64", "true", "--optimizer", "sgd",
                    "--max_epochs", "40", "--checkpoint.every_steps", "20", "--work_ms", "100"});
  }

  /// `hosts`: it serves the store of the agents.
  std::unique_ptr<Process> start_agent(bool hosts) const {
    return std::make_unique<Process>(
        with({find_torchrun(LIBTORCH_DIR), "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "5",
              "--no-python", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:" + port_, "--rdzv-id", "elastic",
              "--local-addr", "127.0.0.1", "--rdzv-conf",
              std::string("last_call_timeout=3,is_host=") + (hosts ? "1" : "0")},
             train(run())),
        // Otherwise an agent that joins a later round waits for an address that the others do not publish again.
        Process::Environment{{"OMP_NUM_THREADS", "1"}, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"}});
  }

  /// Rank 0 may belong to either agent.
  static bool one_says(Process& first, Process& second, const std::string& text) {
    constexpr int kSeconds = 90;
    for (int i = 0; i < kSeconds; ++i) {
      if (first.wait_for(text, Process::Seconds(1)) || second.wait_for(text, Process::Seconds(1))) {
        return true;
      }
    }
    return false;
  }

  std::filesystem::path run() const { return dir_.path() / "run"; }

  void expect_the_losses_of_one_rank() const {
    const auto alone = dir_.path() / "alone";
    auto words = train(alone);
    words.insert(words.end(), {"--work_ms", "0"});
    ASSERT_EQ(run_program(words, {{"OMP_NUM_THREADS", "1"}}).code, 0);
    const auto expected = metric(alone, "loss");
    const auto found = metric(run(), "loss");
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [step, loss] : expected) {
      ASSERT_NEAR(found.at(step), loss, 1e-9 * std::abs(loss)) << "step " << step;
    }
  }

  TempDir dir_;
  const std::string port_ = free_port();
};

TEST_F(Elastic, AnAgentThatIsKilledOrAskedToEndIsDoneWithoutAndComesBack) {
  for (const int signal : {SIGKILL, SIGTERM}) {
    SCOPED_TRACE(signal);
    std::filesystem::remove_all(run());
    const auto first = start_agent(/*hosts=*/true);
    auto second = start_agent(/*hosts=*/false);
    ASSERT_TRUE(one_says(*first, *second, "step 30 ")) << first->err() << second->err();
    const auto rank = Process::ranks_of(second->pid());
    second->signal(signal);
    EXPECT_TRUE(Process::gone(rank, std::chrono::seconds(20))) << "its rank trains on without it";
    ASSERT_TRUE(first->wait_for("torchrun, 1 rank ")) << first->err();
    ASSERT_TRUE(first->wait_for("resuming from step")) << first->err();
    second = start_agent(/*hosts=*/false);
    const auto end = first->wait(Process::Seconds(120));
    EXPECT_EQ(end.code, 0) << end.err;
    EXPECT_EQ(second->wait(Process::Seconds(60)).code, 0) << second->err();
    EXPECT_THAT(end.err + second->err(), HasSubstr("resuming 1 ranks' checkpoint on 2"));
    EXPECT_THAT(end.err + second->err(), HasSubstr("finished at step"));
    expect_the_losses_of_one_rank();
  }
}

}  // namespace
}  // namespace lockstep
