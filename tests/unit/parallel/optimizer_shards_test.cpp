#include "parallel/optimizer_shards.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/lbfgs.h>

#include "parallel/ddp.h"
#include "support/message_of.h"
#include "support/tensors.h"
#include "support/thread_world.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

NamedTensors parameters() {
  NamedTensors all;
  for (const std::int64_t size : {3, 100, 5, 60, 50, 0, 1}) {
    all.emplace_back("p" + std::to_string(size), at::zeros({size}));
  }
  return all;
}

TEST(OptimizerShards, HaveNearlyEqualSizesInAnyOrder) {
  std::vector<std::int64_t> elements(2);
  thread_world(2, [&](World& world) {
    const NamedTensors all = parameters();
    const OptimizerShards shards(all, world);
    std::int64_t& mine = elements[static_cast<std::size_t>(world.rank())];
    for (const auto& [name, parameter] : all) {
      mine += shards.elsewhere().contains(name) ? 0 : parameter.numel();
    }
    const OptimizerShards other(NamedTensors(all.rbegin(), all.rend()), world);
    EXPECT_EQ(other.elsewhere(), shards.elsewhere());
  });
  EXPECT_EQ(elements[0] + elements[1], 219);
  EXPECT_LE(std::abs(elements[0] - elements[1]), 3);
}

TEST(OptimizerShards, SendTheParametersOfEachRank) {
  thread_world(3, [](World& world) {
    const NamedTensors all = parameters();
    const OptimizerShards shards(all, world);
    for (const auto& [name, parameter] : all) {
      parameter.fill_(shards.elsewhere().contains(name) ? -1 : world.rank());
    }
    shards.send_updates(all);
    for (const auto& [name, parameter] : all) {
      EXPECT_TRUE(parameter.ge(0).all().item<bool>()) << name;
      const at::Tensor ranks = world.all_gather(parameter.view({1, -1}));
      EXPECT_TRUE(ranks.eq(ranks[0]).all().item<bool>()) << name;
    }
  });
}

TEST(OptimizerShards, GatherTheStateOfAllRanks) {
  thread_world(3, [](World& world) {
    const NamedTensors all = parameters();
    const OptimizerShards shards(all, world);
    NamedTensors mine;
    for (const auto& [name, parameter] : all) {
      if (!shards.elsewhere().contains(name)) {
        mine.emplace_back(name + ".moment", at::full_like(parameter, parameter.numel()));
        mine.emplace_back(name + ".step", at::scalar_tensor(parameter.numel(), at::kLong));
      }
    }
    mine.emplace_back("loss_scaler:0", at::ones({2}));
    const std::size_t size = mine.size();
    const NamedTensors found = shards.gather(std::move(mine), all);
    if (!world.is_main()) {
      EXPECT_EQ(found.size(), size);
      return;
    }
    ASSERT_EQ(found.size(), 2 * all.size() + 1);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto& [name, parameter] = all[i];
      EXPECT_EQ(found[2 * i].first, name + ".moment");
      EXPECT_TRUE(found[2 * i].second.equal(at::full_like(parameter, parameter.numel())));
      EXPECT_EQ(found[2 * i + 1].second.item<std::int64_t>(), parameter.numel());
    }
    EXPECT_EQ(found.back().first, "loss_scaler:0");
  });
}

TEST(OptimizerShards, GatherStateOfParametersWithAnyName) {
  const NamedTensors all{{"caf\xe9", at::zeros({2})}, {"na\xefve", at::zeros({2})}};  // Latin-1, not UTF-8
  thread_world(2, [&](World& world) {
    const OptimizerShards shards(all, world);
    NamedTensors mine;
    for (const auto& [name, parameter] : all) {
      if (!shards.elsewhere().contains(name)) {
        mine.emplace_back(name + ".moment", at::full_like(parameter, world.rank() + 1));
      }
    }
    ASSERT_EQ(mine.size(), 1U);
    const NamedTensors found = shards.gather(std::move(mine), all);
    if (!world.is_main()) {
      return;
    }
    ASSERT_EQ(found.size(), 2U);
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(found[i].first, all[i].first + ".moment");
      EXPECT_EQ(found[i].second[0].item<float>(), shards.elsewhere().contains(all[i].first) ? 2 : 1);
    }
  });
}

// Checkpoints cannot hold complex128; a rollback can.
TEST(OptimizerShards, GatherStateOfADtypeThatCheckpointsDoNotHold) {
  struct Waves : torch::nn::Module {
    Waves() {
      for (const char* name : {"a", "b", "c"}) {
        register_parameter(name, at::full({3}, c10::complex<double>(1, 2), at::kComplexDouble));
      }
    }
  };
  const auto state_after_a_step = [](bool is_sharded) {
    NamedTensors found;
    thread_world(2, [&](World& world) {
      Waves waves;
      Ddp strategy({}, {.shard_optimizer = is_sharded}, world);
      const OptimizerSpec spec(sgd({.lr = 0.1, .momentum = 0.9}));
      strategy.prepare(waves, {&spec, 1});
      strategy.optimizer().begin_forward(Gradients::reduce);
      at::Tensor loss = at::zeros({}, at::kDouble);
      for (const at::Tensor& parameter : waves.parameters()) {
        loss = loss + at::view_as_real(parameter).square().sum();
      }
      strategy.optimizer().backward(loss);
      strategy.optimizer().finish();
      strategy.optimizer().step();
      NamedTensors state = strategy.optimizer_state();
      if (world.is_main()) {
        found = std::move(state);
      }
    });
    return found;
  };
  const NamedTensors state = state_after_a_step(/*is_sharded=*/true);
  ASSERT_GE(state.size(), 3);
  EXPECT_EQ(state.front().second.scalar_type(), at::kComplexDouble);
  expect_equal(state, state_after_a_step(/*is_sharded=*/false));
}

TEST(OptimizerShards, AreRefusedForAnOptimizerOfAllParametersTogether) {
  thread_world(2, [](World& world) {
    torch::nn::Linear net(2, 2);
    Ddp strategy({}, {.shard_optimizer = true}, world);
    const OptimizerSpec spec([](ParamGroups groups) {
      return std::make_unique<torch::optim::LBFGS>(std::move(groups), torch::optim::LBFGSOptions());
    });
    EXPECT_THAT(message_of([&] {
                  strategy.prepare(*net, {&spec, 1});
                }),
                HasSubstr("optimizer 'main' is LBFGS, which updates all parameters together"));
  });
}

}  // namespace
}  // namespace lockstep
