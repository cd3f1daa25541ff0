#include "optim/fp32_update.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <lockstep/optim/optimizers.h>

#include "optim/list_optimizer.h"
#include "optim/loss_scaler.h"
#include "optim/param_groups.h"
#include "parallel/single_device.h"
#include "support/all_optimizers.h"
#include "support/bfloat16.h"
#include "support/message_of.h"
#include "support/tensors.h"
#include "support/thread_world.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

at::Tensor random(at::IntArrayRef shape, std::uint64_t seed) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat);
}

struct Trained {
  NamedTensors parameters{};
  BuiltOptimizer built{};

  ListOptimizer& optimizer() const { return dynamic_cast<ListOptimizer&>(*built.optimizer); }
  void set_gradients(std::uint64_t seed) {
    for (auto& [name, parameter] : parameters) {
      parameter.mutable_grad() = random(parameter.sizes(), seed++).to(parameter.scalar_type());
    }
  }
  at::Tensor state(std::string_view name) const {
    const NamedTensors all = optimizer_state(built);
    return std::ranges::find(all, name, [](const auto& entry) { return std::string_view(entry.first); })->second;
  }
};

Trained make(const OptimizerFactory& factory, std::vector<at::Tensor> parameters) {
  Trained trained;
  for (at::Tensor& parameter : parameters) {
    trained.parameters.emplace_back("p" + std::to_string(trained.parameters.size()), parameter.set_requires_grad(true));
  }
  trained.built = build_optimizer(OptimizerSpec(factory), trained.parameters);
  return trained;
}

/// Vectors, a matrix with its dimensions exchanged in memory, numbers, and nothing.
std::vector<at::Tensor> values() {
  return {random({40, 30}, 1), random({25}, 2), random({12, 20}, 3).t(), random({}, 4), random({0, 3}, 5)};
}

std::vector<at::Tensor> as_bfloat16(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> halves;
  for (const at::Tensor& tensor : tensors) {
    halves.push_back(tensor.to(at::kBFloat16));
  }
  return halves;
}

/// Gives `whole` the values and states of `half`.
void copy_in_fp32(const Trained& half, Trained& whole) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < whole.parameters.size(); ++i) {
    whole.parameters[i].second.copy_(half.parameters[i].second);
  }
  NamedTensors states;
  for (const auto& [name, tensor] : optimizer_state(half.built)) {
    states.emplace_back(name, tensor.scalar_type() == at::kBFloat16 ? tensor.to(at::kFloat) : tensor.clone());
  }
  load_optimizer_state(whole.built, states);
}

void expect_all_neighbours(const NamedTensors& found, const NamedTensors& exact) {
  ASSERT_EQ(found.size(), exact.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].second.scalar_type() == at::kBFloat16) {
      expect_neighbours(found[i].second.detach(), exact[i].second.detach(), found[i].first);
    } else {
      EXPECT_TRUE(at::allclose(found[i].second, exact[i].second.to(found[i].second.dtype()), 1e-5)) << found[i].first;
    }
  }
}

TEST(Fp32Update, GivesEveryOptimizerTheNeighboursOfItsFp32Update) {
  for (const NamedOptimizer& optimizer : all_optimizers()) {
    SCOPED_TRACE(optimizer.name);
    Trained half = make(optimizer.make, as_bfloat16(values()));
    Trained whole = make(optimizer.make, values());
    for (std::uint64_t step = 0; step < 3; ++step) {
      copy_in_fp32(half, whole);
      half.set_gradients(100 * step);
      for (std::size_t i = 0; i < whole.parameters.size(); ++i) {
        whole.parameters[i].second.mutable_grad() = half.parameters[i].second.grad().to(at::kFloat);
      }
      half.optimizer().round_next(step);
      half.optimizer().step();
      whole.optimizer().step();
      expect_all_neighbours(half.parameters, whole.parameters);
      expect_all_neighbours(optimizer_state(half.built), optimizer_state(whole.built));
      const auto is_nearest = [](const auto& found, const auto& exact) {
        return at::equal(found.second, exact.second.to(at::kBFloat16));
      };
      EXPECT_FALSE(std::ranges::equal(half.parameters, whole.parameters, is_nearest)) << "control: to nearest";
    }
  }
}

/// The mean of parameters of 1 after 1000 updates of -1e-4.
double mean_after_small_updates(const OptimizerFactory& factory, bool rounds) {
  Trained trained = make(factory, {at::ones({4096}, at::kBFloat16)});
  for (std::uint64_t step = 0; step < 1000; ++step) {
    trained.parameters.front().second.mutable_grad() = at::ones({4096}, at::kBFloat16);
    if (rounds) {
      trained.optimizer().round_next(step);
    }
    trained.optimizer().step();
  }
  return trained.parameters.front().second.to(at::kDouble).mean().item<double>();
}

TEST(Fp32Update, CountsUpdatesThatAreSmallerThanASpacing) {
  for (const auto& factory : {sgd({.lr = 1e-4}), adamw({.lr = 1e-4, .weight_decay = 0}), lion({.lr = 1e-4})}) {
    EXPECT_NEAR(mean_after_small_updates(factory, /*rounds=*/true), 0.9, 0.002);
    EXPECT_EQ(mean_after_small_updates(factory, /*rounds=*/false), 1) << "control: to nearest, nothing changes";
  }
}

/// Of the second moment of AdamW, after gradients of 1 and then of 0, to what it should be.
double ratio_of_second_moment(bool rounds) {
  Trained trained = make(adamw({.lr = 0}), {at::ones({4096}, at::kBFloat16)});
  double expected = 0;
  for (std::uint64_t step = 0; step < 600; ++step) {
    const double gradient = step < 300 ? 1 : 0;
    trained.parameters.front().second.mutable_grad() = at::full({4096}, gradient, at::kBFloat16);
    if (rounds) {
      trained.optimizer().round_next(step);
    }
    trained.optimizer().step();
    expected = 0.999 * expected + 0.001 * gradient * gradient;
  }
  return trained.state("p0.exp_avg_sq").to(at::kDouble).mean().item<double>() / expected;
}

TEST(Fp32Update, LetsASlowAverageMove) {
  EXPECT_NEAR(ratio_of_second_moment(/*rounds=*/true), 1, 0.01);
  EXPECT_GT(ratio_of_second_moment(/*rounds=*/false), 1.2) << "control: to nearest, the average does not fall";
}

// So it does not depend on frozen parameters of other lists, on a rank without samples, or on how memory was divided.
TEST(Fp32Update, DoesNotDependOnWhatIsUpdatedTogether) {
  const auto results = [](std::vector<bool> has_gradient) {
    Trained trained =
        make(adamw({.lr = 0.02}), {random({300'000}, 1).to(at::kBFloat16), random({40}, 2).to(at::kBFloat16),
                                   random({100'000}, 3).to(at::kBFloat16)});
    trained.set_gradients(10);
    for (std::size_t i = 0; i < has_gradient.size(); ++i) {
      if (!has_gradient[i]) {
        trained.parameters[i].second.mutable_grad().reset();
      }
    }
    trained.optimizer().round_next(5);
    trained.optimizer().step();
    return trained.parameters;
  };
  const NamedTensors all = results({true, true, true});
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::vector<bool> only(all.size(), false);
    only[i] = true;
    EXPECT_TRUE(at::equal(results(only)[i].second, all[i].second)) << i;
    EXPECT_FALSE(at::equal(results(only)[(i + 1) % 3].second, all[(i + 1) % 3].second)) << "control " << i;
  }
}

TEST(Fp32Update, OfElementsIsThatOfParameters) {
  const auto updated = [](UpdateUnit unit) {
    const at::Tensor value = random({1000, 500}, 1).to(at::kBFloat16).t();
    const at::Tensor gradient = at::empty_like(value).copy_(random({500, 1000}, 2));
    const at::Tensor counter = at::ones({});
    const std::vector<std::int64_t> positions{17};
    std::int64_t calls = 0;
    update_in_fp32({{value}, {gradient}, {counter}, {}}, unit, {.key = 3, .positions = positions},
                   [&](UpdateLists& part) {
                     ++calls;
                     EXPECT_EQ(part[0][0].scalar_type(), at::kFloat);
                     EXPECT_TRUE(part[2][0].is_same(counter));
                     EXPECT_TRUE(part[3].empty());
                     part[0][0].add_(part[1][0], -0.001);
                   });
    return std::pair(value, calls);
  };
  const auto [by_elements, calls] = updated(UpdateUnit::elements);
  const auto [by_parameters, one] = updated(UpdateUnit::parameters);
  EXPECT_TRUE(at::equal(by_elements, by_parameters));
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(one, 1);
}

TEST(Fp32Update, LeavesTheBitsOfASkippedStep) {
  for (const NamedOptimizer& optimizer : all_optimizers()) {
    Trained trained = make(optimizer.make, as_bfloat16(values()));
    auto* const skips = dynamic_cast<SkipsOnDevice*>(trained.built.optimizer.get());
    if (skips == nullptr) {
      continue;  // such an optimizer is not called in a skipped step
    }
    NamedTensors before;
    for (std::uint64_t step = 0; step < 3; ++step) {
      trained.set_gradients(step);
      trained.optimizer().round_next(step);
      if (step == 2) {
        skips->skip_if(at::ones({}));
        for (const auto& [name, tensor] : optimizer_state(trained.built)) {
          before.emplace_back(name, tensor.clone());
        }
        for (const auto& [name, tensor] : trained.parameters) {
          before.emplace_back(name, tensor.detach().clone());
        }
      }
      trained.optimizer().step();
    }
    NamedTensors after = optimizer_state(trained.built);
    for (const auto& [name, tensor] : trained.parameters) {
      after.emplace_back(name, tensor.detach());
    }
    EXPECT_TRUE(are_equal(after, before)) << optimizer.name;
  }
}

TEST(Fp32Update, LeavesFp32ParametersAlone) {
  const auto results = [](bool rounds) {
    Trained trained = make(adamw({.lr = 0.02}), {random({50}, 1), random({40}, 2).to(at::kBFloat16)});
    trained.set_gradients(10);
    if (rounds) {
      trained.optimizer().round_next(5);
    }
    trained.optimizer().step();
    return trained.parameters;
  };
  EXPECT_TRUE(at::equal(results(true)[0].second, results(false)[0].second));
  EXPECT_FALSE(at::equal(results(true)[1].second, results(false)[1].second)) << "control";
}

/// Weights after `updates` updates in each of two steps.
at::Tensor trained_by_strategy(World& world, std::uint64_t seed, int updates) {
  torch::nn::Linear net(8, 8);
  net->to(at::kBFloat16);
  {
    const at::NoGradGuard no_grad;
    net->weight.fill_(1);
    net->bias.fill_(1);
  }
  SingleDevice strategy({.stochastic_rounding = true}, {}, world, Precision::bf16, seed);
  const OptimizerSpec spec(sgd({.lr = 0.25 * kBfloat16Ulp / 2}));
  strategy.prepare(*net, {&spec, 1});
  for (std::int64_t step = 0; step < 2; ++step) {
    strategy.begin_step(step, {});
    for (int update = 0; update < updates; ++update) {
      StrategyOptimizer& optimizer = strategy.optimizer();
      optimizer.zero_grad();
      optimizer.begin_forward(Gradients::reduce);
      optimizer.backward(net->weight.sum() + net->bias.sum());
      optimizer.finish();
      optimizer.step();
    }
    strategy.agreed();
  }
  return net->weight.detach().clone();
}

TEST(Fp32Update, HasOtherNumbersForEachSeedAndUpdate) {
  thread_world(1, [](World& world) {
    const at::Tensor found = trained_by_strategy(world, 1, 1);
    EXPECT_TRUE(at::equal(trained_by_strategy(world, 1, 1), found));
    EXPECT_FALSE(at::equal(trained_by_strategy(world, 2, 1), found)) << "another seed";
    // With the same numbers in all updates of a step, an element that is rounded down once would never move.
    const at::Tensor often = trained_by_strategy(world, 1, 30);
    EXPECT_LT((often == 1).sum().item<std::int64_t>(), 3);
    EXPECT_NEAR(often.to(at::kDouble).mean().item<double>(), 1 - 60 * 0.25 * kBfloat16Ulp / 2, 0.01);
  });
}

TEST(Fp32Update, IsRefusedWithoutABfloat16Parameter) {
  thread_world(1, [](World& world) {
    torch::nn::Linear net(2, 2);
    SingleDevice strategy({.stochastic_rounding = true}, {}, world);
    const OptimizerSpec spec(sgd({.lr = 0.1}));
    EXPECT_THAT(message_of([&] {
                  strategy.prepare(*net, {&spec, 1});
                }),
                HasSubstr("--optim.stochastic_rounding true: no bfloat16 parameter is trained"));
  });
}

// Only the part with bfloat16 parameters needs an optimizer that can be rounded.
TEST(Fp32Update, LeavesOtherOptimizersAlone) {
  thread_world(1, [](World& world) {
    torch::nn::ModuleList net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
    net[0]->to(at::kBFloat16);
    SingleDevice strategy({.stochastic_rounding = true}, {}, world);
    const OptimizerFactory torchs = [](ParamGroups groups) {
      return std::make_unique<torch::optim::AdamW>(std::move(groups));
    };
    std::vector<OptimizerSpec> specs{OptimizerSpec(sgd({.lr = 0.1})), OptimizerSpec(torchs)};
    specs[0].module = net[0].get();
    specs[1].module = net[1].get();
    strategy.prepare(*net, specs);
    std::swap(specs[0].make, specs[1].make);
    EXPECT_THAT(message_of([&] { strategy.prepare(*net, specs); }), HasSubstr("only optimizers of lockstep can round"));
  });
}

TEST(Fp32Update, IsRefusedForOptimizersThatCalculateTheirUpdatesThemselves) {
  thread_world(1, [](World& world) {
    torch::nn::Linear net(2, 2);
    net->to(at::kBFloat16);
    SingleDevice strategy({.stochastic_rounding = true}, {}, world, Precision::bf16);
    const OptimizerSpec spec(
        [](ParamGroups groups) { return std::make_unique<torch::optim::AdamW>(std::move(groups)); });
    const auto error = error_of([&] { strategy.prepare(*net, {&spec, 1}); });
    EXPECT_STREQ(error.what(),
                 "--optim.stochastic_rounding true: optimizer 'main' has bfloat16 parameters, and only optimizers of "
                 "lockstep can round their updates at random");
    EXPECT_THAT(error.hint(), HasSubstr("lockstep::adamw()"));
  });
}

}  // namespace
}  // namespace lockstep
