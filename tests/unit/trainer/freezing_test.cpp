#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/trainer/callbacks.h>

#include "support/at_stage.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Named, SelectsByPattern) {
  const at::Tensor any;
  const auto selects = [&](const char* pattern, const char* name) { return named(pattern)(name, any); };
  EXPECT_TRUE(selects("*", "a.b.weight"));
  EXPECT_TRUE(selects("encoder.*", "encoder.0.weight"));
  EXPECT_FALSE(selects("encoder.*", "decoder.encoder.weight"));
  EXPECT_TRUE(selects("*.bias", "a.b.bias"));
  EXPECT_FALSE(selects("*.bias", "a.bias.b"));
  EXPECT_TRUE(selects("layer?.weight", "layer7.weight"));
  EXPECT_FALSE(selects("layer?.weight", "layer17.weight"));
  EXPECT_TRUE(selects("a*b*c", "a.x.b.b.c"));
  EXPECT_FALSE(selects("a*b*c", "a.x.b.b.d"));
  EXPECT_TRUE(selects("weight", "weight"));
  EXPECT_FALSE(selects("weight", "weights"));
  EXPECT_TRUE(selects("weight**", "weight"));
  EXPECT_FALSE(selects("", "weight"));
}

TEST(Freeze, SelectsByPatternAndRefusesNothing) {
  TinyTask task;
  EXPECT_EQ(freeze(task.module(), "*"), 2U);
  EXPECT_FALSE(task.module().parameters().front().requires_grad());
  EXPECT_EQ(unfreeze(task.module(), "bias"), 1U);
  EXPECT_FALSE(task.module().named_parameters()["weight"].requires_grad());
  EXPECT_TRUE(task.module().named_parameters()["bias"].requires_grad());
  EXPECT_THAT(message_of([&] { freeze(task.module(), "backbone.*"); }),
              testing::AllOf(HasSubstr("'backbone.*' selects no parameter"), HasSubstr("weight, bias")));
}

/// Whether the weight changed in each step.
std::vector<bool> changes(World& world, TrainConfig config) {
  config.batch_size = 8 / world.size();
  const Plan plan = plan_for(world.size(), config);
  TinyTask task(adamw({.lr = 0.01}));
  DataLoader data(tiny_data(16), plan.loader, world);
  std::vector<bool> found;
  at::Tensor before;
  Trainer trainer(plan, world);
  trainer.add(std::make_shared<FreezeUntil>("weight", 3));
  trainer.add(at_stage(Stage::fit_start | Stage::step_end, [&](const StageContext& context) {
    const at::Tensor weight = task.module().named_parameters()["weight"].detach().clone();
    if (context.stage == Stage::step_end) {
      found.push_back(!at::equal(weight, before));
    }
    before = weight;
  }));
  trainer.fit(task, data);
  return found;
}

TEST(FreezeUntil, TrainsFromItsEpochOn) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [](World& world) {
      EXPECT_THAT(changes(world, in_memory({.max_epochs = 4})),
                  ElementsAre(false, false, false, false, true, true, true, true));
    });
  }
}

TEST(FreezeUntil, ContinuesAfterAResume) {
  World world = World::single(c10::kCPU);
  for (const std::int64_t stop : {1, 3, 4, 5}) {
    const TempDir dir;
    TrainConfig config = in_memory({.max_epochs = 4});
    config.run_dir = (dir.path() / "run").string();
    config.checkpoint.enabled = true;
    config.max_steps = stop;
    auto found = changes(world, config);
    config.max_steps = 0;
    const auto rest = changes(world, config);
    found.insert(found.end(), rest.begin(), rest.end());
    EXPECT_THAT(found, ElementsAre(false, false, false, false, true, true, true, true)) << stop;
  }
}

TEST(FreezeUntil, WorksWithAShardedOptimizer) {
  const TempDir dir;
  std::vector<std::vector<bool>> found(2);
  for (const std::int64_t stop : {3, 5, 0}) {
    thread_world(2, [&](World& world) {
      TrainConfig config = in_memory({.max_epochs = 4});
      config.dist.shard_optimizer = true;
      config.run_dir = (dir.path() / "run").string();
      config.checkpoint.enabled = true;
      config.max_steps = stop;
      const auto part = changes(world, config);
      auto& all = found[static_cast<std::size_t>(world.rank())];
      all.insert(all.end(), part.begin(), part.end());
    });
  }
  for (const auto& all : found) {
    EXPECT_THAT(all, ElementsAre(false, false, false, false, true, true, true, true));
  }
}

/// Each part has an optimizer, which divides its parameters into groups.
class TwoParts final : public Task {
 public:
  TwoParts() {
    const at::NoGradGuard no_grad;
    for (auto& parameter : net_->parameters()) {
      parameter.copy_(at::cos(at::arange(parameter.numel(), at::kFloat)).view(parameter.sizes()) * 0.3);
    }
  }
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override {
    OptimizerSpec first(adamw({.lr = 0.02, .no_decay_vectors = true}));
    first.module = first_.get();
    OptimizerSpec second(adamw({.lr = 0.01, .no_decay_vectors = true}));
    second.module = second_.get();
    return {first, second};
  }
  void optimize(Step& step) override {
    for (std::size_t i = 0; i < step.optimizer_count(); ++i) {
      update_with(i, step,
                  [this](const Batch& batch) { return at::mse_loss(net_->forward(batch.input), batch.target); });
    }
  }

 private:
  torch::nn::Linear first_{4, 4};
  torch::nn::Linear second_{4, 1};
  torch::nn::Sequential net_{first_, second_};
};

TEST(FreezeUntil, MayHoldBackAllParametersOfAnOptimizer) {
  for (const int ranks : {1, 2}) {
    std::vector<at::Tensor> straight;
    for (const std::int64_t stop : {0, 1, 4, 5}) {
      const TempDir dir;
      TrainConfig config = in_memory({.max_epochs = 4, .batch_size = 8 / ranks, .run_dir = dir.path() / "run"});
      config.checkpoint.enabled = true;
      std::vector<at::Tensor> weights;
      for (const std::int64_t max_steps : {stop, std::int64_t{0}}) {
        config.max_steps = max_steps;
        thread_world(ranks, [&](World& world) {
          const Plan plan = plan_for(ranks, config);
          TwoParts task;
          DataLoader data(tiny_data(16), plan.loader, world);
          Trainer trainer(plan, world);
          trainer.add(std::make_shared<FreezeUntil>("0.*", 3));
          trainer.fit(task, data);
          if (world.is_main()) {
            weights = weights_of(task);
          }
        });
      }
      straight = straight.empty() ? weights : straight;
      EXPECT_TRUE(are_equal(weights, straight)) << ranks << " ranks, resumed after " << stop;
    }
    EXPECT_FALSE(at::equal(straight.front(), TwoParts().module().parameters().front().detach()));
  }
}

TEST(FreezeUntil, RefusesTheFirstEpoch) {
  EXPECT_THAT(message_of([] { FreezeUntil("weight", 1); }), HasSubstr("epoch is 1, expected 2 or more"));
}

}  // namespace
}  // namespace lockstep
