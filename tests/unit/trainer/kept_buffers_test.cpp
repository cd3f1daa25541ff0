// A step that is left out leaves the buffers of the module as they were.
#include "trainer/watch/kept_buffers.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/parallel/sync_batch_norm.h>
#include <lockstep/trainer/trainer.h>

#include "support/captured_stderr.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::Contains;
using testing::ElementsAre;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

NamedTensors buffers_of(const torch::nn::Module& module) {
  NamedTensors found;
  for (const auto& item : module.named_buffers()) {
    found.emplace_back(item.key(), item.value().clone());
  }
  return found;
}

struct SomeBuffers : torch::nn::Module {
  at::Tensor mean = register_buffer("mean", at::ones({2, 3}));
  at::Tensor count = register_buffer("count", at::zeros({}, at::kLong));
  at::Tensor mask = register_buffer("mask", at::arange(3).gt(1));
  at::Tensor phase = register_buffer("phase", at::ones({2}, at::kComplexFloat));
  at::Tensor slice = register_buffer("slice", at::ones({4, 4}).select(1, 2));
  at::Tensor same = register_buffer("same", at::ones({1}).expand({4}));
  at::Tensor nothing = register_buffer("nothing", at::ones({0}));

  void change() {
    mean.fill_(kNan);
    count.add_(1);
    mask.logical_not_();
    phase.mul_(2);
    slice.fill_(kNan);
  }
};

// A flag in double is not read on the host: what is done with it is what a GPU does.
TEST(KeptBuffers, GetTheValuesOfBeforeIfTheStepIsLeftOut) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    SomeBuffers module;
    KeptBuffers kept(module, at::kCPU);
    for (int step = 0; step < 3; ++step) {
      module.mean.fill_(step);
      module.slice.fill_(step);
      const NamedTensors before = buffers_of(module);
      kept.take();
      module.change();
      kept.put_back_if(at::zeros({}, dtype));
      kept.put_back_if({});
      EXPECT_TRUE(module.mean.isnan().all().item<bool>());
      EXPECT_FALSE(at::equal(module.mask, before.at(2).second));
      kept.put_back_if(at::ones({}, dtype));
      EXPECT_TRUE(are_equal(buffers_of(module), before)) << "step " << step;
      module.change();
      module.mask.logical_not_();
    }
  }
}

TEST(KeptBuffers, FollowABufferWithAnotherShape) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    SomeBuffers module;
    KeptBuffers kept(module, at::kCPU);
    kept.take();
    module.mean.set_data(at::full({5}, 7.0));
    module.count.add_(1);
    kept.put_back_if(at::ones({}, dtype));
    EXPECT_TRUE(at::equal(module.mean, at::full({5}, 7.0))) << "its old values do not fit";
    EXPECT_EQ(module.count.item<int>(), 0);

    const NamedTensors before = buffers_of(module);
    kept.take();
    module.change();
    kept.put_back_if(at::ones({}, dtype));
    EXPECT_TRUE(are_equal(buffers_of(module), before));
  }
}

// As Module::to() changes it between two steps.
TEST(KeptBuffers, FollowBuffersWithAnotherDtype) {
  SomeBuffers module;
  KeptBuffers kept(module, at::kCPU);
  kept.take();
  module.mean.set_data(at::full({2, 3}, 1.0 / 3, at::kDouble));
  module.slice.set_data(at::full({4}, 1.0 / 3, at::kDouble));
  const NamedTensors before = buffers_of(module);
  kept.take();
  module.change();
  kept.put_back_if(at::ones({}));
  EXPECT_TRUE(are_equal(buffers_of(module), before)) << "a third in float32 is another number";
}

constexpr std::int64_t kSpoiled = 15;  // spikes are looked for after 10 steps

/// What the last rank does in step kSpoiled.
struct Spoils {
  double input = 1;  // factors
  double loss = 1;
};

/// A regression after batch norm.
template <class Norm>
class NormTask final : public TinyTask {
 public:
  NormTask(const World& world, Spoils spoils) : spoils_(spoils), is_mine_(world.rank() == world.size() - 1) {
    net_->register_module("norm", norm_);
  }
  StepOutput training_step(const Batch& batch) override {
    const Spoils now = is_mine_ && step_ == kSpoiled ? spoils_ : Spoils{};
    return at::mse_loss(net_(norm_(batch.input * now.input)), batch.target) * now.loss;
  }
  void optimize(Step& step) override {
    step_ = step.number();
    Task::optimize(step);
  }

 private:
  Norm norm_{4};
  Spoils spoils_;
  bool is_mine_;
  std::int64_t step_ = 0;
};

bool is_left_out(const StepResult& step) {
  const auto is_set = [](const at::Tensor& flag) { return flag.defined() && flag.item<double>() > 0; };
  return is_set(step.skipped) || is_set(step.spike);
}

/// Looks at each step. Returns the steps that were left out; of them none changed a buffer, and each other one did.
std::vector<std::int64_t> steps_left_out(const TrainConfig& config, World& world, Task& task) {
  const Plan plan = plan_for(world.size(), config);
  DataLoader data(tiny_data(48), plan.loader, world);
  std::vector<std::int64_t> left_out;
  NamedTensors before;
  Trainer(plan, world)
      .on(Stage::fit_start, [&](const StageContext& at) { before = buffers_of(at.module); })
      .on(Stage::step_end,
          [&](const StageContext& at) {
            NamedTensors now = buffers_of(at.module);
            EXPECT_EQ(are_equal(now, before), is_left_out(at.step)) << "step " << at.state.step - 1;
            before = std::move(now);
            if (is_left_out(at.step)) {
              left_out.push_back(at.state.step - 1);
            }
          })
      .fit(task, data);
  for (const auto& [name, buffer] : before) {
    EXPECT_TRUE(buffer.isfinite().all().item<bool>()) << name;
  }
  return left_out;
}

TEST(KeptBuffers, StayFiniteWithEachPolicyThatLeavesOutSteps) {
  struct Case {
    TrainConfig config{};
    Spoils spoils{};
    std::string name{};
  };
  const TrainConfig base = in_memory({.max_epochs = 4, .batch_size = 2, .global_batch_size = 8});
  std::vector<Case> cases(4, {.config = base, .spoils = {.input = kNan}});
  cases[0].name = "a loss that is not finite";
  cases[0].config.optim.non_finite = NonFinitePolicy::skip;
  cases[1].name = "a gradient that is not finite";
  cases[1].config.optim.non_finite = NonFinitePolicy::skip;
  cases[1].spoils = {.input = 1e6, .loss = 3e38};
  cases[2].name = "a spike";
  cases[2].config.spike = {.z_score = 6, .window = 10, .policy = SpikePolicy::skip};
  cases[2].spoils = {.input = 1e6, .loss = 1e4};
  cases[3].name = "an overflow in half precision";
  cases[3].config.precision = Precision::fp16_mixed;
  for (Case& one : cases) {
    for (const auto& [ranks, broadcasts] : {std::pair(1, true), std::pair(2, true), std::pair(2, false)}) {
      SCOPED_TRACE(one.name + ", ranks: " + std::to_string(ranks));
      one.config.dist.broadcast_buffers = broadcasts;
      const CapturedStderr silent;
      thread_world(ranks, [&](World& world) {
        NormTask<torch::nn::BatchNorm1d> task(world, one.spoils);
        EXPECT_THAT(steps_left_out(one.config, world, task), Contains(kSpoiled));
      });
    }
  }
  const CapturedStderr silent;
  thread_world(2, [&](World& world) {
    NormTask<SyncBatchNorm> task(world, cases[0].spoils);
    EXPECT_THAT(steps_left_out(cases[0].config, world, task), ElementsAre(kSpoiled));
  });
}

TEST(KeptBuffers, AreThoseOfTheStepWithAPolicyThatGoesOn) {
  TrainConfig config = in_memory({.max_epochs = 4, .batch_size = 8});
  config.optim.non_finite = NonFinitePolicy::warn;
  const CapturedStderr silent;
  World world = World::single(c10::kCPU);
  NormTask<torch::nn::BatchNorm1d> task(world, {.input = kNan});
  const Plan plan = plan_for(1, config);
  DataLoader data(tiny_data(48), plan.loader, world);
  Trainer(plan, world).fit(task, data);
  EXPECT_TRUE(task.module().named_buffers()["norm.running_mean"].isnan().all().item<bool>());
}

/// Two regressions after one batch norm without parameters. Step 3 spoils the second one.
class TwoAfterOne final : public Task {
 public:
  TwoAfterOne() {
    net_.register_module("norm", norm_);
    net_.register_module("a", a_);
    net_.register_module("b", b_);
  }
  torch::nn::Module& module() override { return net_; }
  std::vector<OptimizerSpec> optimizers() override {
    OptimizerSpec first(sgd({.lr = 0.01}));
    first.module = a_.get();
    OptimizerSpec second(adamw({.lr = 0.01}));
    second.module = b_.get();
    return {first, second};
  }
  void optimize(Step& step) override {
    update_with(0, step, [&](const Batch& batch) { return at::mse_loss(a_(norm_(batch.input)), batch.target); });
    const double factor = step.number() == 3 ? kNan : 1;
    update_with(1, step,
                [&](const Batch& batch) { return at::mse_loss(b_(norm_(batch.input * factor)), batch.target); });
  }

 private:
  torch::nn::Module net_;
  torch::nn::BatchNorm1d norm_{torch::nn::BatchNorm1dOptions(4).affine(false)};
  torch::nn::Linear a_{4, 1};
  torch::nn::Linear b_{4, 1};
};

TEST(KeptBuffers, GoBackIfOneOfTwoUpdatesIsLeftOut) {
  for (const int ranks : {1, 2}) {
    TrainConfig config = in_memory({.max_epochs = 1, .batch_size = 4, .global_batch_size = 8});
    config.optim.non_finite = NonFinitePolicy::skip;
    const Plan plan = plan_for(ranks, config);
    const CapturedStderr silent;
    thread_world(ranks, [&](World& world) {
      TwoAfterOne task;
      DataLoader data(tiny_data(48), plan.loader, world);
      NamedTensors buffers;
      std::vector<at::Tensor> weights;
      Trainer(plan, world)
          .on(Stage::step_end,
              [&](const StageContext& at) {
                NamedTensors now = buffers_of(at.module);
                std::vector<at::Tensor> weights_now = weights_of(task);
                if (at.state.step > 1) {
                  EXPECT_EQ(are_equal(now, buffers), at.state.step == 4) << at.state.step;
                  EXPECT_FALSE(at::equal(weights_now[0], weights[0])) << "a.weight";
                  EXPECT_EQ(at::equal(weights_now[2], weights[2]), at.state.step == 4) << "b.weight";
                }
                buffers = std::move(now);
                weights = std::move(weights_now);
              })
          .fit(task, data);
    });
  }
}

}  // namespace
}  // namespace lockstep
