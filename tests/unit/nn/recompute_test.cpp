#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
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

/// `part` of x, recomputed or not.
at::Tensor run(bool recomputes, const std::function<at::Tensor(const at::Tensor&)>& part, const at::Tensor& x) {
  return recomputes ? recompute(part, x) : part(x);
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

// The function that made the mask has returned before the backward.
TEST(Recompute, KeepsWhatTheFunctionHasByValueUntilTheBackward) {
  Block block;
  block.eval();
  const at::Tensor x = input().requires_grad_();
  const auto forward = [&](bool recomputes) {
    const at::Tensor mask = at::arange(12, at::kFloat).view({3, 4}).remainder(3);
    return run(
        recomputes, [&block, mask](const at::Tensor& t) { return block.forward(t * mask); }, x);
  };
  std::vector<at::Tensor> found;
  for (const bool recomputes : {true, false}) {
    forward(recomputes).square().sum().backward();
    found.push_back(x.grad().clone());
    x.mutable_grad().reset();
  }
  EXPECT_TRUE(at::equal(found[0], found[1]));
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

// A hook of a tensor changes its gradient, so it must see the whole gradient, and only once.
TEST(Recompute, RunsTheHooksOfTensorsOnce) {
  const auto train = [](bool recomputes) {
    Block block;
    block.eval();
    int calls = 0;
    block.first->weight.register_hook([&](const at::Tensor& gradient) {
      ++calls;
      return gradient.square();
    });
    at::Tensor x = input().requires_grad_();
    const at::Tensor scale = x.exp();
    scale.retain_grad();
    scale.register_hook([&](const at::Tensor& gradient) {
      ++calls;
      return gradient * 3;
    });
    const auto scaled = [&](const at::Tensor& t) { return block.forward(t) * scale; };
    at::linear(run(recomputes, scaled, x), block.first->weight).square().sum().backward();
    EXPECT_EQ(calls, 2);
    return std::vector<at::Tensor>{block.first->weight.grad(), x.grad(), scale.grad()};
  };
  EXPECT_TRUE(are_equal(train(true), train(false)));
}

// Several parts share a tensor that they do not get as an input, and one of them is used twice.
TEST(Recompute, UsesTensorsOfTheGraphAroundIt) {
  const auto train = [](bool recomputes) {
    Block block;
    block.eval();
    at::Tensor x = input().requires_grad_();
    const at::Tensor memory = block.second(at::relu(block.first(x)));
    const auto with_memory = [&](const at::Tensor& t) { return block.forward(t) * memory; };
    const at::Tensor y = run(recomputes, with_memory, run(recomputes, with_memory, x));
    (run(
         recomputes, [&](const at::Tensor&) { return memory; }, y) +
     y * memory)
        .sum()
        .backward();
    std::vector<at::Tensor> found{x.grad()};
    for (const at::Tensor& parameter : block.parameters()) {
      found.push_back(parameter.grad());
    }
    return found;
  };
  const auto expected = train(false);
  const auto found = train(true);
  for (std::size_t i = 0; i < expected.size(); ++i) {  // more than two gradients are added in another order
    EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-5, 1e-6)) << i;
  }
}

TEST(Recompute, WorksInsideOfARecomputedPart) {
  const auto train = [](bool recomputes) {
    Block block;
    auto generator = at::globalContext().defaultGenerator(c10::kCPU);
    generator.set_current_seed(7);
    const auto inner = [&](const at::Tensor& t) { return block.forward(t); };
    const auto outer = [&](const at::Tensor& t) { return run(recomputes, inner, t).sin(); };
    at::Tensor x = input().requires_grad_();
    run(recomputes, outer, x).square().sum().backward();
    EXPECT_EQ(block.runs, recomputes ? 3 : 1);
    std::vector<at::Tensor> found{x.grad()};
    for (const at::Tensor& parameter : block.parameters()) {
      found.push_back(parameter.grad());
    }
    return found;
  };
  EXPECT_TRUE(are_equal(train(true), train(false)));
}

TEST(Recompute, HasTheGraphOfItsPart) {
  Block block;
  const at::Tensor y = recompute([&](const at::Tensor& t) { return block.forward(t); }, input());
  std::vector<std::string> names;
  for (const auto& edge : y.grad_fn()->next_edges()) {
    names.push_back(edge.is_valid() ? edge.function->name() : "");
  }
  EXPECT_THAT(
      names, testing::UnorderedElementsAre("", testing::EndsWith("AccumulateGrad"), testing::EndsWith("AccumulateGrad"),
                                           testing::EndsWith("AccumulateGrad"), testing::EndsWith("AccumulateGrad")));
  for (auto& parameter : block.parameters()) {
    parameter.requires_grad_(false);
  }
  EXPECT_FALSE(recompute([&](const at::Tensor& t) { return block.forward(t); }, input()).requires_grad());
}

TEST(Recompute, RefusesAFunctionThatChanges) {
  Block block;
  Block other;
  int runs = 0;
  const auto changes = [&](const at::Tensor& t) { return ++runs == 1 ? block.forward(t) : other.forward(t); };
  const at::Tensor y = recompute(changes, input().requires_grad_());
  EXPECT_THAT(message_of<Error>([&] { y.sum().backward(); }),
              HasSubstr("the second run of the function has other outputs or uses other parameters than the first"));
  EXPECT_FALSE(other.first->weight.grad().defined());
}

// The second run would change it once more.
TEST(Recompute, RefusesAFunctionThatChangesItsInput) {
  Block block;
  const at::Tensor y = recompute([&](const at::Tensor& t) { return block.forward(t.mul_(2)); }, input());
  EXPECT_THAT(message_of<c10::Error>([&] { y.sum().backward(); }), HasSubstr("modified by an inplace operation"));
}

// The force of an energy: the part has a gradient of its own, of a tensor that it makes.
TEST(Recompute, MayUseDerivativesInside) {
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> place;
  const auto train = [&](bool recomputes) {
    Block block;
    block.eval();
    const auto force = [&](const at::Tensor& t) {
      const at::Tensor at = (t.detach() + 1).requires_grad_();
      place.emplace(at.storage().getWeakStorageImpl());
      const at::Tensor energy = block.forward(at).sin().sum();
      return torch::autograd::grad({energy}, {at}, {}, /*retain_graph=*/true, /*create_graph=*/true).front();
    };
    const at::Tensor y = run(recomputes, force, input());
    EXPECT_EQ(place->expired(), recomputes);
    y.square().sum().backward();
    return std::vector<at::Tensor>{block.first->weight.grad(), block.second->weight.grad()};
  };
  EXPECT_TRUE(are_equal(train(true), train(false)));
}

TEST(Recompute, MayChangeViewsInside) {
  const auto train = [](bool recomputes) {
    Block block;
    at::Tensor x = input().requires_grad_();
    const auto part = [&](const at::Tensor& t) {
      at::Tensor y = block.first(t);
      y.narrow(1, 0, 4).mul_(block.second->bias);
      return y;
    };
    run(recomputes, part, x).square().sum().backward();
    return std::vector<at::Tensor>{x.grad(), block.first->weight.grad(), block.second->bias.grad()};
  };
  EXPECT_TRUE(are_equal(train(true), train(false)));
}

/// As recompute(), but gradients of parameters are added in a backward inside of the backward.
struct BackwardInside : torch::autograd::Function<BackwardInside> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, Block* block) {
    context->save_for_backward({x});
    context->saved_data["block"] = reinterpret_cast<std::int64_t>(block);
    return block->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto* block = reinterpret_cast<Block*>(context->saved_data["block"].toInt());
    const at::AutoGradMode with_gradients(true);
    torch::autograd::backward({block->forward(context->get_saved_variables().front().detach())}, {gradients.front()});
    return {at::zeros_like(gradients.front()), at::Tensor()};
  }
};

TEST(BackwardInsideOfABackward, IsRefusedIfAParameterGetsTwoGradients) {
  const auto refuse = [](World& world) {
    Block block;
    Ddp strategy({}, {.find_unused_parameters = true}, world);
    const OptimizerSpec spec(adamw({.lr = 0.01}));
    strategy.prepare(block, {&spec, 1});
    strategy.optimizer().zero_grad();
    strategy.optimizer().begin_forward(Gradients::reduce);
    const at::Tensor y = BackwardInside::apply(input().requires_grad_(), &block);
    const std::string text = message_of([&] { strategy.optimizer().backward(y.sum()); });
    EXPECT_THAT(text, testing::ContainsRegex("(first|second)\\.(weight|bias) got a second gradient in one backward"));
    EXPECT_THAT(text, HasSubstr("--dist.static_graph true"));
  };
  thread_world(2, refuse);
  shared_memory_world(2, refuse);
}

TEST(Recompute, TakesSeveralInputsAndOutputs) {
  const auto f = [](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{in[0] * in[1], in[0].detach(), in[1].exp().index_select(0, in[2])};
  };
  const auto run = [&](bool recomputes) {
    const std::vector<at::Tensor> in{at::arange(3, at::kFloat).requires_grad_(), at::ones({3}).requires_grad_(),
                                     at::tensor({2, 0}, at::kLong)};
    const auto out = recomputes ? recompute(f, in) : f(in);
    EXPECT_FALSE(out[1].requires_grad());
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

struct Ranks {
  std::string name{};
  int count = 2;
  Backend backend = Backend::gloo;
  DistConfig options{};
  GradientHook hook{};
  int micro_batches = 1;
  bool has_two_optimizers = false;
  bool ties_weights = false;  // those of the lower part are used below it too
};
std::ostream& operator<<(std::ostream& out, const Ranks& ranks) { return out << ranks.name; }

/// The module after three steps. With two optimizers, the backward of the second one goes on below its own part.
NamedTensors trained(const Ranks& ranks, World& world, bool recomputes) {
  torch::nn::Module both;
  Block& lower = *both.register_module("lower", std::make_shared<Block>());
  Block& upper = *both.register_module("upper", std::make_shared<Block>());
  both.eval();
  std::vector<OptimizerSpec> specs(ranks.has_two_optimizers ? 2 : 1, OptimizerSpec(adamw({.lr = 0.01})));
  if (ranks.has_two_optimizers) {
    specs[0].name = "of lower";
    specs[0].module = &lower;
    specs[1].name = "of upper";
    specs[1].module = &upper;
  }
  Ddp strategy({}, ranks.options, world, Precision::fp32, /*seed=*/0, ranks.hook);
  strategy.prepare(both, specs);
  const auto through = [&](Block& part, const at::Tensor& x) {
    return run(
        recomputes, [&](const at::Tensor& in) { return part.forward(in); }, x);
  };
  for (int step = 0; step < 3; ++step) {
    strategy.begin_step(step, {});
    for (std::size_t i = 0; i < specs.size(); ++i) {
      StrategyOptimizer& optimizer = strategy.optimizer(i);
      optimizer.zero_grad();
      for (int m = 1; m <= ranks.micro_batches; ++m) {
        optimizer.begin_forward(m == ranks.micro_batches ? Gradients::reduce : Gradients::accumulate);
        at::Tensor x = input() + world.rank() + step + 0.1 * m;
        if (ranks.ties_weights) {
          x = at::linear(at::linear(x, lower.first->weight), lower.second->weight);
        }
        optimizer.backward(through(upper, through(lower, x)).square().mean());
      }
      optimizer.finish();
      optimizer.step();
    }
  }
  return copies(module_tensors(both));
}

class RecomputeOnRanks : public testing::TestWithParam<Ranks> {};

TEST_P(RecomputeOnRanks, TrainsAsWithoutIt) {
  const Ranks& ranks = GetParam();
  const auto compare = [&](World& world) {
    EXPECT_TRUE(are_equal(trained(ranks, world, true), trained(ranks, world, false)));
  };
  thread_world(ranks.count, compare, std::chrono::seconds(30), /*nodes=*/1, ranks.backend);
}

constexpr double kTinyBuckets = 0.0001;  // MiB

void mean_in_two_parts(const GradientBucket& bucket, World& world) {
  for (at::Tensor& part : bucket.gradients.tensor_split(2)) {
    world.all_reduce(part, Reduce::mean);
  }
}

/// Each with several buckets, over Gloo and in shared memory.
std::vector<Ranks> all_ranks() {
  std::vector<Ranks> all;
  for (const auto& [of_backend, backend] : {std::pair("gloo", Backend::gloo), std::pair("shm", Backend::shm)}) {
    const auto add = [&](const char* name, Ranks ranks) {
      ranks.name = fmt::format("{}_{}_{}", name, ranks.count, of_backend);
      ranks.backend = backend;
      ranks.options.bucket_mib = kTinyBuckets;
      all.push_back(std::move(ranks));
    };
    for (const int count : {2, 3}) {
      add("plain", {.count = count});
      add("static_graph", {.count = count, .options = {.static_graph = true}});
      add("unused_are_searched", {.count = count, .options = {.find_unused_parameters = true}});
      add("tied", {.count = count, .ties_weights = true});
    }
    add("tied_static_graph", {.options = {.static_graph = true}, .ties_weights = true});
    add("tied_unused_are_searched", {.options = {.find_unused_parameters = true}, .ties_weights = true});
    add("tied_accumulation", {.micro_batches = 2, .ties_weights = true});
    add("accumulation", {.micro_batches = 2});
    add("two_optimizers", {.count = 3, .has_two_optimizers = true});
    add("compression", {.options = {.compression = GradCompression::fp16}});
    add("compression_static_graph", {.options = {.static_graph = true, .compression = GradCompression::fp16}});
    add("hook", {.hook = mean_in_two_parts});
    add("tied_hook", {.hook = mean_in_two_parts, .ties_weights = true});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Modes, RecomputeOnRanks, testing::ValuesIn(all_ranks()),
                         [](const auto& test) { return test.param.name; });

TEST(Recompute, RefusesAnUndefinedInput) {
  torch::nn::Linear layer(4, 4);
  const auto second = [&](const std::vector<at::Tensor>& in) { return std::vector<at::Tensor>{layer(in[1])}; };
  EXPECT_THAT(message_of<Error>([&] {
                static_cast<void>(recompute(second, {at::Tensor(), at::ones({2, 4})}));
              }),
              testing::HasSubstr("undefined tensor"));
}

}  // namespace
}  // namespace lockstep
