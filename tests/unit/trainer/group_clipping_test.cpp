// Groups with a gradient norm of their own. tests/parity compares trainings with PyTorch's clip_grad_norm_ per group.
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/trainer/callbacks.h>

#include "support/at_stage.h"
#include "support/message_of.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

struct Gradients {
  at::Tensor weight{};
  at::Tensor bias{};
  double norm() const { return at::cat({weight.flatten(), bias}).norm().item<double>(); }
};

/// Gradients of the first step before and after clipping.
std::pair<Gradients, Gradients> clipped(World& world, std::vector<GroupSpec> groups, double max_grad_norm = 0) {
  OptimizerSpec spec(adamw({.no_decay_vectors = true}));  // divides a group into matrices and vectors
  spec.groups = std::move(groups);
  TinyTask task(spec);
  TrainConfig config = in_memory({.max_epochs = 0, .max_steps = 1, .batch_size = 4});
  config.optim.max_grad_norm = max_grad_norm;
  const Plan plan = plan_for(world.size(), config);
  DataLoader data(tiny_data(8), plan.loader, world);
  const auto gradients = [&] {
    const auto parameters = task.module().named_parameters();
    return Gradients{parameters["weight"].grad().clone(), parameters["bias"].grad().clone()};
  };
  std::pair<Gradients, Gradients> found;
  Trainer trainer(plan, world);
  trainer.on(Stage::backward_end, [&](const StageContext&) { found.first = gradients(); });
  trainer.on(Stage::step_end, [&](const StageContext&) { found.second = gradients(); });
  trainer.fit(task, data);
  return found;
}

TEST(GroupClipping, ClipsEachGroupByItsNorm) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [](World& world) {
      const auto [before, after] =
          clipped(world, {{.select = named("weight"), .max_grad_norm = 0.25}, {.max_grad_norm = 100}});
      EXPECT_GT(before.weight.norm().item<double>(), 0.5);
      EXPECT_NEAR(after.weight.norm().item<double>(), 0.25, 1e-5);
      EXPECT_TRUE(at::allclose(after.weight * (before.weight.norm() / after.weight.norm()), before.weight));
      EXPECT_TRUE(at::equal(after.bias, before.bias)) << "within its limit";
    });
  }
}

TEST(GroupClipping, AGroupThatTheFactoryDividesHasOneNorm) {
  World world = World::single(c10::kCPU);
  const auto [before, after] = clipped(world, {{.max_grad_norm = 0.25}});
  EXPECT_NEAR(after.norm(), 0.25, 1e-5);
  EXPECT_TRUE(at::allclose(after.bias * (before.norm() / after.norm()), before.bias));
}

TEST(GroupClipping, TheLimitOfTheRunComesAfterwards) {
  World world = World::single(c10::kCPU);
  const std::vector<GroupSpec> groups{{.select = named("weight"), .max_grad_norm = 0.25}, {}};
  const Gradients by_group = clipped(world, groups).second;
  const Gradients both = clipped(world, groups, 0.1).second;
  EXPECT_NEAR(both.norm(), 0.1, 1e-5);
  EXPECT_TRUE(at::allclose(both.weight * (by_group.norm() / both.norm()), by_group.weight));
}

TEST(GroupClipping, RefusesALimitBelowZero) {
  World world = World::single(c10::kCPU);
  EXPECT_THAT(message_of([&] { clipped(world, {{.max_grad_norm = -1}}); }),
              testing::HasSubstr("optimizer 'main': group 0 has max_grad_norm -1, expected 0 or more"));
}

}  // namespace
}  // namespace lockstep
