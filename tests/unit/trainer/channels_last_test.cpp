// memory.channels_last: convolutions see tensors of that format, and nothing else changes.
#include <cstdint>
#include <utility>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/checkpoint/module_state.h>
#include <lockstep/trainer/callbacks.h>

#include "support/at_stage.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

struct SmallNetImpl : torch::nn::Module {
  SmallNetImpl() {
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)));
    second = register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 5, 3).stride(2)));
    out = register_module("out", torch::nn::Linear(5, 2));
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) {
      parameter.copy_(at::cos(at::arange(parameter.numel(), at::kFloat)).view(parameter.sizes()) * 0.4);
    }
  }
  at::Tensor forward(const at::Tensor& images) { return out(second(at::tanh(first(images))).mean({2, 3})); }
  torch::nn::Conv2d first{nullptr}, second{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(SmallNet);

bool is_channels_last(const at::Tensor& tensor) { return tensor.is_contiguous(at::MemoryFormat::ChannelsLast); }

class ImageTask final : public Task {
 public:
  explicit ImageTask(OptimizerSpec optimizer) : optimizer_(std::move(optimizer)) {}
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override { return {optimizer_}; }
  StepOutput training_step(const Batch& batch) override {
    (is_channels_last(batch.input) && is_channels_last(net_->first->weight) ? last_ : first_) += 1;
    return at::mse_loss(net_(batch.input), batch.target);
  }
  bool saw_only_channels_last() const { return last_ > 0 && first_ == 0; }

 private:
  SmallNet net_;
  OptimizerSpec optimizer_;
  int first_ = 0;  // forwards with the channels first
  int last_ = 0;
};

std::shared_ptr<Dataset> images() {
  constexpr std::int64_t kSize = 14;
  const auto x = at::sin(at::arange(kSize * 3 * 6 * 6, at::kFloat) * 0.11).view({kSize, 3, 6, 6});
  return tensor_dataset(x, x.mean({2, 3}).narrow(1, 0, 2));
}

/// Parameters and optimizer state of the main rank at the end.
NamedTensors trained(World& world, TrainConfig config, const OptimizerSpec& optimizer) {
  config.max_epochs = 3;
  config.global_batch_size = 4;
  config.optim.max_grad_norm = 0.5;
  const Plan plan = plan_for(world.size(), config);
  ImageTask task(optimizer);
  DataLoader data(images(), plan.loader, world);
  DataLoader validation(images(), plan.eval_loader, world);
  NamedTensors found;
  Trainer trainer(plan, world);
  trainer.add(std::make_shared<WeightAverage>());
  trainer.add(at_stage(Stage::fit_end, [&](const StageContext& context) {
    for (const auto& [name, tensor] : context.strategy->optimizer_state()) {
      found.emplace_back(name, tensor.clone());
    }
  }));
  trainer.fit(task, data, &validation);
  EXPECT_EQ(task.saw_only_channels_last(), config.memory.channels_last);
  for (const auto& [name, tensor] : module_tensors(task.module())) {
    found.emplace_back(name, tensor.detach().clone());
  }
  return found;
}

NamedTensors trained(int ranks, const TrainConfig& config, const OptimizerSpec& optimizer) {
  NamedTensors of_main;
  thread_world(ranks, [&](World& world) {
    NamedTensors found = trained(world, config, optimizer);
    if (world.is_main()) {
      of_main = std::move(found);
    }
  });
  return of_main;
}

struct Case {
  const char* name;
  OptimizerSpec optimizer;
  Precision precision = Precision::fp64;
  double tolerance = 1e-10;
};

std::vector<Case> cases() {
  return {{"adamw", adamw({.lr = 0.02})},
          {"sgd", sgd({.lr = 0.1, .momentum = 0.9})},
          {"muon", muon({.lr = 0.02, .adamw = {.lr = 0.02}}), Precision::fp64, 1e-4},  // iterates in bfloat16
          {"adamw in fp32", adamw({.lr = 0.02}), Precision::fp32, 1e-4},
          {"adamw with autocast", adamw({.lr = 0.02}), Precision::bf16_mixed, 0.1}};
}

TEST(ChannelsLast, TrainsAsChannelsFirst) {
  for (const Case& c : cases()) {
    TrainConfig config = in_memory({});
    config.precision = c.precision;
    const NamedTensors first = trained(1, config, c.optimizer);
    config.memory.channels_last = true;
    for (const int ranks : {1, 2, 3}) {
      EXPECT_LT(largest_difference(trained(ranks, config, c.optimizer), first), c.tolerance) << c.name << ", " << ranks;
    }
    config.seed = 43;  // the control
    EXPECT_GT(largest_difference(trained(1, config, c.optimizer), first), std::min(c.tolerance, 1e-6)) << c.name;
  }
}

TEST(ChannelsLast, ResumesWithTheBytesOfTheUndisturbedRun) {
  for (const Case& c : cases()) {
    for (const bool shards : {false, true}) {
      const TempDir dir;
      TrainConfig config = in_memory({});
      config.precision = c.precision;
      config.memory.channels_last = true;
      config.dist.shard_optimizer = shards;
      const NamedTensors straight = trained(2, config, c.optimizer);
      config.run_dir = (dir.path() / "run").string();
      config.checkpoint.enabled = true;
      for (const std::int64_t steps : {5, 0}) {
        config.max_steps = steps;
        const NamedTensors found = trained(2, config, c.optimizer);
        EXPECT_EQ(largest_difference(found, straight) == 0, steps == 0) << c.name << (shards ? ", sharded" : "");
      }
    }
  }
}

// A checkpoint has no memory format: it can be read with another one.
TEST(ChannelsLast, ResumesARunOfChannelsFirst) {
  for (const bool last_in_first_part : {false, true}) {
    const TempDir dir;
    TrainConfig config = in_memory({});
    config.precision = Precision::fp64;
    const NamedTensors straight = trained(1, config, adamw({.lr = 0.02}));
    config.run_dir = (dir.path() / "run").string();
    config.checkpoint.enabled = true;
    config.max_steps = 5;
    config.memory.channels_last = last_in_first_part;
    trained(1, config, adamw({.lr = 0.02}));
    config.max_steps = 0;
    config.memory.channels_last = !last_in_first_part;
    EXPECT_LT(largest_difference(trained(1, config, adamw({.lr = 0.02})), straight), 1e-10);
  }
}

}  // namespace
}  // namespace lockstep
