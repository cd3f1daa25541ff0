#include "parallel/without_peers.h"

#include <barrier>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include "parallel/ddp.h"
#include "support/limited_memory.h"
#include "support/thread_world.h"

namespace lockstep {
namespace {

struct Net : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(20, 50));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(50, 20));
};

const std::vector<OptimizerSpec> kAdam{adamw({.lr = 0.1})};

void run_step(Strategy& strategy, Net& net, Gradients gradients) {
  StrategyOptimizer& optimizer = strategy.optimizer();
  strategy.begin_step(0);
  optimizer.zero_grad();
  optimizer.begin_forward(gradients);
  optimizer.backward(net.second(net.first(at::ones({3, 20}))).square().mean());
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

TEST(WithoutPeers, HasMemoryForTheBucketsOfTheReducer) {
  const auto bytes_of = [](int ranks) {
    std::int64_t found = 0;
    std::barrier all(ranks);  // the ranks are threads with one memory, and a barrier of the world has tensors itself
    thread_world(ranks, [&](World& world) {
      TrainConfig config;
      Net net;
      World alone = World::single(c10::kCPU);
      WithoutPeers trial(config, world, alone);
      all.arrive_and_wait();
      if (world.is_main()) {
        const LimitedMemory memory;
        const std::int64_t before = LimitedMemory::used();
        trial.prepare(net, kAdam);
        found = LimitedMemory::used() - before;
      }
      all.arrive_and_wait();
    });
    return found;
  };
  const std::int64_t gradients = 4 * (20 * 50 + 50 + 50 * 20 + 20);
  EXPECT_LT(bytes_of(1), gradients / 2);
  EXPECT_EQ(bytes_of(2) - bytes_of(1), gradients);
}

}  // namespace
}  // namespace lockstep
