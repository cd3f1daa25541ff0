// Tests that need an NVIDIA GPU. One GPU is sufficient: several ranks share it.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>

#include "support/requirements.h"
#include "support/runs.h"
#include "support/watched_task.h"

namespace lockstep {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;

double worst_difference(const std::vector<double>& found, const std::vector<double>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    worst = std::max(worst, std::abs(found[i] - expected[i]) / std::abs(expected[i]));
  }
  return worst;
}

TrainConfig training_on(ComputeSetup compute_setup) {
  TrainConfig config = in_memory({.max_epochs = 0, .max_steps = 50, .batch_size = 4, .global_batch_size = 8});
  config.compute_setup = compute_setup;
  config.optim.max_grad_norm = 0.5;
  config.optim.schedule = "cosine";
  return config;
}

std::vector<double> train(const TrainConfig& config, WatchedTask& task) {
  Session session = Session::single(config);
  EXPECT_EQ(session.world.device().is_cuda(), config.compute_setup == ComputeSetup::gpu);
  DataLoader data(tiny_data(45), session.plan.loader, session.world);
  DataLoader validation(tiny_data(8), session.plan.eval_loader, session.world);
  const auto recorder = std::make_shared<LossRecorder>();
  Trainer(session).add(recorder).fit(task, data, &validation);
  return recorder->losses;
}

TEST(TrainerOnGpu, LearnsWhatTheCpuLearns) {
  LOCKSTEP_REQUIRE(Requirements().gpus(1));
  for (const auto& optimizer : {sgd({.lr = 0.02, .momentum = 0.9}), adamw({.lr = 0.01})}) {
    WatchedTask on_gpu(optimizer);
    WatchedTask on_cpu(optimizer);
    // The GPU first: LibTorch's CUDA half must be loaded before the first backward of the process.
    const auto found = train(training_on(ComputeSetup::gpu), on_gpu);
    const auto expected = train(training_on(ComputeSetup::cpu), on_cpu);
    ASSERT_EQ(expected.size(), 50U);
    EXPECT_LE(worst_difference(found, expected), 1e-4);
    EXPECT_LT(expected.back(), 0.8 * expected.front());
    const auto left = on_gpu.module().parameters();
    const auto right = on_cpu.module().parameters();
    for (std::size_t i = 0; i < right.size(); ++i) {
      EXPECT_TRUE(left[i].is_cuda());
      EXPECT_TRUE(at::allclose(left[i].cpu(), right[i], /*rtol=*/1e-4, /*atol=*/1e-6)) << "parameter " << i;
    }
  }
}

TEST(TrainerOnGpu, TrainsInBf16AndKeepsFloat) {
  LOCKSTEP_REQUIRE(Requirements().gpus(1));
  TrainConfig config = training_on(ComputeSetup::gpu);
  config.precision = Precision::bf16_mixed;
  config.max_steps = 200;
  WatchedTask task(adamw({.lr = 0.02}));
  const auto losses = train(config, task);
  ASSERT_EQ(losses.size(), 200U);
  EXPECT_LT(losses.back(), 0.1 * losses.front());
  EXPECT_THAT(task.training_outputs, ElementsAre(at::kBFloat16));
  EXPECT_THAT(task.validation_outputs, ElementsAre(at::kBFloat16));
  EXPECT_THAT(task.losses, ElementsAre(at::kFloat));
  for (const auto& parameter : task.module().parameters()) {
    EXPECT_EQ(parameter.scalar_type(), at::kFloat);
  }
}

// The other order cannot work and gives an error of lockstep instead of one in LibTorch.
TEST(WorldOnGpu, IsRefusedAfterLibTorchFoundNoCuda) {
  LOCKSTEP_REQUIRE(Requirements().gpus(1));
  at::manual_seed(1);
  try {
    Session::single(training_on(ComputeSetup::gpu));
    FAIL() << "no error";
  } catch (const LaunchError& error) {
    EXPECT_THAT(error.hint(), HasSubstr("manual_seed"));
  }
}

const Process::Environment kOneGpu{{"CUDA_VISIBLE_DEVICES", "0"}, {"OMP_NUM_THREADS", "1"}};

std::vector<std::string> gpu_command(const std::filesystem::path& run, const std::vector<std::string>& more) {
  auto all = command(TRAIN_PROGRAM, run, {"--compute_setup", "gpu"});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

class RanksOnGpu : public testing::Test {
 protected:
  std::filesystem::path run(const std::string& name) const { return dir_.path() / name; }

  static std::vector<std::string> flags(const std::vector<std::string>& more) {
    std::vector<std::string> all{"--dropout",    "0", "--max_steps",         "50",
                                 "--max_epochs", "0", "--global_batch_size", "12"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  /// Two ranks that share GPU 0, started as torchrun would. NCCL rejects two ranks on one GPU of one host, so they
  /// appear to be on two hosts.
  void train_two_ranks(const std::string& name, const std::vector<std::string>& more) {
    const std::string port = free_port();
    std::vector<std::unique_ptr<Process>> ranks;
    for (const std::string rank : {"0", "1"}) {
      auto environment = kOneGpu;
      environment.insert({{"RANK", rank},
                          {"LOCAL_RANK", rank},
                          {"WORLD_SIZE", "2"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", port},
                          {"NCCL_HOSTID", "host" + rank},
                          {"NCCL_SOCKET_IFNAME", "lo"},
                          {"NCCL_NET", "Socket"}});
      ranks.push_back(std::make_unique<Process>(gpu_command(run(name), flags(more)), environment));
    }
    for (const auto& rank : ranks) {
      const auto result = rank->wait();
      ASSERT_EQ(result.code, 0) << result.err;
      EXPECT_EQ(result.err.find("destroy_process_group"), std::string::npos) << result.err;
    }
    EXPECT_THAT(ranks[0]->err(), HasSubstr("cuda:0"));
    EXPECT_THAT(ranks[0]->err(), ContainsRegex("backend +" + more.at(1)));
  }

  void train_one_rank(const std::string& name, const std::vector<std::string>& more = {}) {
    const auto result = run_program(gpu_command(run(name), flags(more)), kOneGpu);
    ASSERT_EQ(result.code, 0) << result.err;
  }

  std::vector<double> losses(const std::string& name) const {
    std::vector<double> all;
    for (const auto& [step, loss] : metric(run(name), "loss")) {
      all.push_back(loss);
    }
    EXPECT_EQ(all.size(), 50U) << name;
    return all;
  }

  TempDir dir_;
};

TEST_F(RanksOnGpu, NcclLearnsWhatOneRankLearns) {
  LOCKSTEP_REQUIRE(Requirements().gpus(1).nccl());
  train_two_ranks("two", {"--backend", "nccl"});
  train_one_rank("one");
  train_one_rank("other", {"--seed", "7"});
  EXPECT_LE(worst_difference(losses("two"), losses("one")), 1e-4);
  EXPECT_GT(worst_difference(losses("other"), losses("one")), 1e-2);  // control
}

TEST_F(RanksOnGpu, GlooLearnsWhatOneRankLearns) {
  LOCKSTEP_REQUIRE(Requirements().gpus(1));
  train_two_ranks("two", {"--backend", "gloo"});
  train_one_rank("one");
  EXPECT_LE(worst_difference(losses("two"), losses("one")), 1e-4);
}

TEST(ResumeOnGpu, AfterCtrlCIsBitwise) {
  LOCKSTEP_REQUIRE(Requirements().gpus(1));
  const TempDir dir;
  // Long enough for the signal to arrive during the training. With dropout, because the GPU's generator is resumed as
  // well.
  const std::vector<std::string> flags{"--max_epochs", "0", "--max_steps", "1000"};
  const auto straight = run_program(gpu_command(dir.path() / "straight", flags), kOneGpu);
  ASSERT_EQ(straight.code, 0) << straight.err;

  const auto stopped = gpu_command(dir.path() / "stopped", flags);
  {
    Process process(stopped, kOneGpu);
    ASSERT_TRUE(process.wait_for("step 7 ")) << process.err();
    process.signal(SIGINT);
    const auto result = process.wait();
    ASSERT_EQ(result.code, 130) << result.err;
    EXPECT_THAT(result.err, HasSubstr("run the same command again to continue"));
  }
  ASSERT_NE(newest_checkpoint(dir.path() / "stopped").filename(),
            newest_checkpoint(dir.path() / "straight").filename());
  const auto resumed = run_program(stopped, kOneGpu);
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("resuming from"));

  const auto expected = final_state(dir.path() / "straight");
  const auto found = final_state(dir.path() / "stopped");
  ASSERT_EQ(expected.size(), 4U);  // name, model, optimizer and generators
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, bytes] : expected) {
    EXPECT_TRUE(found.at(name) == bytes) << name << " differs";
  }
}

}  // namespace
}  // namespace lockstep
