#include <memory>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/checkpoint/module_state.h>
#include <lockstep/nn/recompute.h>
#include <lockstep/optim/precision.h>

#include "parallel/ddp.h"
#include "support/message_of.h"
#include "support/tensors.h"
#include "support/thread_world.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

struct Block : torch::nn::Module {
  Block() {
    first = register_module("first", torch::nn::Linear(4, 16));
    drop = register_module("drop", torch::nn::Dropout(0.5));
    second = register_module("second", torch::nn::Linear(16, 4));
    const at::NoGradGuard no_grad;
    double shift = 0;
    for (auto& parameter : parameters()) {
      parameter.copy_(at::sin(at::arange(parameter.numel(), at::kFloat) + ++shift).view_as(parameter) * 0.5);
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    ++runs;
    const at::Tensor hidden = at::relu(first(x));
    last_hidden.emplace(hidden.storage().getWeakStorageImpl());
    return second(drop(hidden));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::Dropout drop{nullptr};
  int runs = 0;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> last_hidden{};
};

at::Tensor input() { return at::sin(at::arange(12, at::kFloat)).view({3, 4}); }

/// Gradients of the input and of the parameters, and the next random number.
std::vector<at::Tensor> gradients(Block& block, bool recomputes, bool input_requires_grad = true) {
  auto generator = at::globalContext().defaultGenerator(c10::kCPU);
  generator.set_current_seed(7);
  at::Tensor x = input().requires_grad_(input_requires_grad);
  for (auto& parameter : block.parameters()) {
    parameter.mutable_grad().reset();
  }
  const at::Tensor y =
      recomputes ? recompute([&](const at::Tensor& t) { return block.forward(t); }, x) : block.forward(x);
  at::Tensor noise = at::rand({4});  // between forward and backward
  (y * noise).square().sum().backward();
  std::vector<at::Tensor> found{noise, at::rand({2})};
  if (input_requires_grad) {
    found.push_back(x.grad());
  }
  for (auto& parameter : block.parameters()) {
    found.push_back(parameter.grad().clone());
  }
  return found;
}

TEST(Recompute, GivesTheSameGradientsAndRandomNumbers) {
  Block block;
  for (const bool input_requires_grad : {true, false}) {
    const auto plain = gradients(block, false, input_requires_grad);
    EXPECT_EQ(block.runs, 1);
    EXPECT_TRUE(are_equal(gradients(block, true, input_requires_grad), plain));
    EXPECT_EQ(block.runs, 3);
    block.runs = 0;
  }
}

TEST(Recompute, KeepsNoIntermediateValues) {
  Block block;
  const at::Tensor x = input();
  const at::Tensor kept = block.forward(x);
  EXPECT_FALSE(block.last_hidden->expired());  // control
  const at::Tensor y = recompute([&](const at::Tensor& t) { return block.forward(t); }, x);
  EXPECT_TRUE(block.last_hidden->expired());
  EXPECT_TRUE(y.requires_grad());
}

TEST(Recompute, RunsOnceWithoutGradients) {
  Block block;
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(recompute([&](const at::Tensor& t) { return block.forward(t); }, input()).requires_grad());
  EXPECT_EQ(block.runs, 1);
}

TEST(Recompute, RepeatsTheAutocastOfTheFirstRun) {
  Block block;
  block.eval();
  const auto with_autocast = [&](bool recomputes) {
    at::Tensor x = input().requires_grad_();
    at::Tensor y;
    {
      const AutocastScope autocast(Precision::bf16_mixed, c10::kCPU);
      y = recomputes ? recompute([&](const at::Tensor& t) { return block.forward(t); }, x) : block.forward(x);
    }
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    y.to(at::kFloat).square().sum().backward();
    return std::vector<at::Tensor>{x.grad()};
  };
  EXPECT_TRUE(are_equal(with_autocast(true), with_autocast(false)));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(c10::kCPU));
}

// A cast that is kept from a run without gradients, or from the step before, would be wrong.
TEST(Recompute, KeepsNoCastOfAutocast) {
  const auto train = [](bool recomputes) {
    Block block;
    block.eval();
    std::vector<at::Tensor> found;
    for (int step = 0; step < 3; ++step) {
      at::Tensor y;
      {
        const AutocastScope autocast(Precision::bf16_mixed, c10::kCPU);
        const auto run = [&](const at::Tensor& t) { return block.forward(t); };
        y = recomputes ? recompute(run, input()) : run(input());
        y = block.forward(y);  // the same weights outside of it
      }
      y.to(at::kFloat).square().sum().backward();
      for (auto& parameter : block.parameters()) {
        found.push_back(parameter.grad().clone());
        const at::NoGradGuard no_grad;
        parameter.sub_(parameter.grad(), 0.02);
        parameter.mutable_grad().reset();
      }
    }
    return found;
  };
  const auto expected = train(false);
  const auto found = train(true);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_LE((found[i] - expected[i]).norm().item<double>(), 0.03 * expected[i].norm().item<double>()) << i;
  }
}

TEST(Recompute, IsRefusedWhereUnusedParametersAreSearched) {
  thread_world(2, [](World& world) {
    Block block;
    Ddp strategy({}, {.find_unused_parameters = true}, world);
    const OptimizerSpec spec(adamw({.lr = 0.01}));
    strategy.prepare(block, {&spec, 1});
    strategy.optimizer().zero_grad();
    strategy.optimizer().begin_forward(Gradients::reduce);
    const at::Tensor y = recompute([&](const at::Tensor& t) { return block.forward(t); }, input());
    const std::string text = message_of([&] { strategy.optimizer().backward(y.sum()); });
    EXPECT_THAT(text, testing::ContainsRegex("(first|second)\\.(weight|bias) got a second gradient in one backward"));
  });
}

TEST(Recompute, TakesSeveralInputsAndOutputs) {
  const auto f = [](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{in[0] * in[1], in[0].detach(), in[1].exp().index_select(0, in[2])};
  };
  const auto run = [&](bool recomputes) {
    const std::vector<at::Tensor> in{at::arange(3, at::kFloat).requires_grad_(), at::ones({3}).requires_grad_(),
                                     at::tensor({2, 0}, at::kLong)};
    const auto out = recomputes ? recompute(f, in) : f(in);
    (out[0].sum() + out[2].square().sum()).backward();
    return std::vector<at::Tensor>{in[0].grad(), in[1].grad()};
  };
  EXPECT_TRUE(are_equal(run(true), run(false)));
}

TEST(Recompute, HasNoSecondDerivative) {
  at::Tensor x = input().requires_grad_();
  const at::Tensor y = recompute([](const at::Tensor& t) { return t.exp(); }, x);
  EXPECT_THAT(message_of([&] {
                torch::autograd::grad({y.sum()}, {x}, /*grad_outputs=*/{}, /*retain_graph=*/true,
                                      /*create_graph=*/true);
              }),
              HasSubstr("recompute() has no second derivative"));
}

// The reducer gets the gradients from a backward within the backward.
TEST(Recompute, TrainsOnSeveralRanks) {
  for (const bool static_graph : {false, true}) {
    thread_world(2, [&](World& world) {
      std::vector<NamedTensors> found;
      for (const bool recomputes : {false, true}) {
        torch::nn::Module both;
        Block& lower = *both.register_module("lower", std::make_shared<Block>());
        Block& upper = *both.register_module("upper", std::make_shared<Block>());
        both.eval();
        Ddp strategy({}, {.bucket_mib = 0.0001, .static_graph = static_graph}, world);
        const OptimizerSpec spec(adamw({.lr = 0.01}));
        strategy.prepare(both, {&spec, 1});
        for (int step = 0; step < 3; ++step) {
          strategy.begin_step(step, {});
          strategy.optimizer().zero_grad();
          strategy.optimizer().begin_forward(Gradients::reduce);
          const at::Tensor x = input() + world.rank() + step;
          const auto run = [&](Block& part, const at::Tensor& t) {
            return recomputes ? recompute([&](const at::Tensor& in) { return part.forward(in); }, t) : part.forward(t);
          };
          strategy.optimizer().backward(run(upper, run(lower, x)).square().mean());
          strategy.optimizer().finish();
          strategy.optimizer().step();
        }
        found.push_back(copies(module_tensors(both)));
      }
      EXPECT_TRUE(are_equal(found[0], found[1]));
    });
  }
}

TEST(Recompute, RefusesAnUndefinedInput) {
  torch::nn::Linear layer(4, 4);
  const auto second = [&](const std::vector<at::Tensor>& in) { return std::vector<at::Tensor>{layer(in[1])}; };
  EXPECT_THAT(message_of<Error>([&] {
                recompute(second, {at::Tensor(), at::ones({2, 4})});
              }),
              testing::HasSubstr("undefined tensor"));
}

}  // namespace
}  // namespace lockstep
