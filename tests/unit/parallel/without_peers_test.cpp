#include "parallel/without_peers.h"

#include <barrier>
#include <cstdint>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include "parallel/ddp.h"
#include "support/barrier_of_ranks.h"
#include "support/limited_memory.h"
#include "support/thread_world.h"

namespace lockstep {
namespace {

struct Net : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(20, 50));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(50, 20));
};

const std::vector<OptimizerSpec> kAdam{adamw({.lr = 0.1})};

void backward(Strategy& strategy, Net& net, Gradients gradients) {
  StrategyOptimizer& optimizer = strategy.optimizer();
  optimizer.begin_forward(gradients);
  optimizer.backward(net.second(net.first(at::ones({3, 20}))).square().mean());
}

void run_backward(Strategy& strategy, Net& net, Gradients gradients) {
  strategy.begin_step(0);
  strategy.optimizer().zero_grad();
  backward(strategy, net, gradients);
}

void run_step(Strategy& strategy, Net& net, Gradients gradients) {
  run_backward(strategy, net, gradients);
  StrategyOptimizer& optimizer = strategy.optimizer();
  optimizer.finish();
  optimizer.set_lr({});
  optimizer.step();
}

std::size_t states_of(const Net& net, Strategy& strategy) {
  std::size_t states = 0;
  for (const auto& parameter : net.named_parameters()) {
    states += strategy.optimizer().torch_optimizer().state().count(parameter.value().unsafeGetTensorImpl());
  }
  return states;
}

TEST(WithoutPeers, HasTheOptimizerStateOfItsRank) {
  for (const bool shards : {false, true}) {
    thread_world(2, [&](World& world) {
      TrainConfig config;
      config.dist.shard_optimizer = shards;
      Net trained;
      Ddp ddp(config.optim, config.dist, world);
      ddp.prepare(trained, kAdam);
      run_step(ddp, trained, Gradients::reduce);
      Net tried;
      World alone = World::single(c10::kCPU);
      WithoutPeers trial(config, world, alone);
      trial.prepare(tried, kAdam);
      run_step(trial, tried, Gradients::reduce);
      EXPECT_EQ(states_of(tried, trial), states_of(trained, ddp));
      EXPECT_EQ(states_of(tried, trial), shards ? 2 : 4);
    });
  }
}

/// What a rank has beside its weights after a backward, or before the first one, in units of all gradients.
double copies_of_gradients(int ranks, std::optional<Gradients> backward) {
  constexpr std::int64_t kBytes = 4 * (20 * 50 + 50 + 50 * 20 + 20);
  std::int64_t found = 0;
  std::barrier all(ranks);  // the ranks are threads with one memory, and a barrier of the world has tensors itself
  thread_world(ranks, [&](World& world) {
    PlaceAtBarrier place(all);
    TrainConfig config;
    Net net;
    World alone = World::single(c10::kCPU);
    WithoutPeers trial(config, world, alone);
    place.wait();
    if (world.is_main()) {
      const LimitedMemory memory;
      const std::int64_t before = LimitedMemory::used();
      trial.prepare(net, kAdam);
      if (backward) {
        run_backward(trial, net, *backward);
      }
      found = LimitedMemory::used() - before;
    }
    place.wait();
  });
  return static_cast<double>(found) / kBytes;
}

TEST(WithoutPeers, HasTheGradientsThatTheReducerHas) {
  EXPECT_NEAR(copies_of_gradients(1, std::nullopt), 0, 0.05);
  EXPECT_NEAR(copies_of_gradients(1, Gradients::reduce), 1, 0.05);
  EXPECT_NEAR(copies_of_gradients(2, std::nullopt), 1, 0.05) << "the buckets are always there";
  EXPECT_NEAR(copies_of_gradients(2, Gradients::reduce), 1, 0.05) << "in the buckets";
  EXPECT_NEAR(copies_of_gradients(2, Gradients::accumulate), 2, 0.05) << "beside the buckets";
}

TEST(WithoutPeers, HasTheGradientsOfTheModel) {
  thread_world(2, [](World& world) {
    TrainConfig config;
    World alone = World::single(c10::kCPU);
    Net net;
    WithoutPeers trial(config, world, alone);
    trial.prepare(net, kAdam);
    run_backward(trial, net, Gradients::accumulate);
    std::vector<at::Tensor> once;
    for (const at::Tensor& parameter : net.parameters()) {
      once.push_back(parameter.grad().clone());
    }
    backward(trial, net, Gradients::reduce);
    for (std::size_t i = 0; i < once.size(); ++i) {
      EXPECT_TRUE(at::equal(net.parameters()[i].grad(), 2 * once[i])) << i;
    }
    run_backward(trial, net, Gradients::reduce);  // the buckets still have the sums
    for (std::size_t i = 0; i < once.size(); ++i) {
      EXPECT_TRUE(at::equal(net.parameters()[i].grad(), once[i])) << i;
    }
  });
}

}  // namespace
}  // namespace lockstep
