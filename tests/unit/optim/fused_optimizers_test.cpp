#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/output-archive.h>

#include <lockstep/base/error.h>

#include "optim/fused_adamw.h"
#include "optim/fused_sgd.h"
#include "support/message_of.h"
#include "support/tensors.h"

namespace lockstep {
namespace {

using torch::optim::OptimizerParamGroup;
using Tensors = std::vector<at::Tensor>;

Tensors make_parameters() {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
  Tensors parameters;
  const std::vector<std::vector<std::int64_t>> shapes{{5, 3}, {5}, {2, 3, 4}, {1}, {}, {0, 4}};
  for (const auto& shape : shapes) {
    parameters.push_back(at::randn(shape, generator, at::kFloat).set_requires_grad(true));
  }
  return parameters;
}

Tensors make_gradients(const Tensors& parameters, std::uint64_t step) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(100 + step);
  Tensors gradients;
  for (const at::Tensor& parameter : parameters) {
    gradients.push_back(at::randn(parameter.sizes(), generator, at::kFloat));
  }
  return gradients;
}

/// Sets new gradient tensors; `skip(i)` parameters get none.
template <class Skip>
void set_gradients(const Tensors& parameters, std::uint64_t step, const Skip& skip) {
  const Tensors gradients = make_gradients(parameters, step);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = skip(i) ? at::Tensor() : gradients[i];
  }
}

constexpr auto kNone = [](std::size_t) { return false; };

/// Two groups: the first two parameters with options of their own, the others with the defaults.
template <class Options>
std::vector<OptimizerParamGroup> two_groups(const Tensors& parameters, const Options& own) {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(Tensors(parameters.begin(), parameters.begin() + 2), std::make_unique<Options>(own));
  groups.emplace_back(Tensors(parameters.begin() + 2, parameters.end()));
  return groups;
}

void set_lr(torch::optim::Optimizer& optimizer, double lr) {
  for (OptimizerParamGroup& group : optimizer.param_groups()) {
    group.options().set_lr(lr);
  }
}

struct Pair {
  std::unique_ptr<torch::optim::Optimizer> fused;
  std::unique_ptr<torch::optim::Optimizer> reference;
};
using MakePair = Pair (*)(const Tensors& a, const Tensors& b);

Pair make_adamw(const Tensors& a, const Tensors& b) {
  const auto defaults = torch::optim::AdamWOptions(0.03);
  const auto own = torch::optim::AdamWOptions(0.01).weight_decay(0.2).betas({0.8, 0.95}).eps(1e-6);
  return {std::make_unique<FusedAdamW>(two_groups(a, own), defaults),
          std::make_unique<torch::optim::AdamW>(two_groups(b, own), defaults)};
}
Pair make_sgd(const Tensors& a, const Tensors& b) {
  const auto defaults = torch::optim::SGDOptions(0.05);
  const auto own = torch::optim::SGDOptions(0.02).momentum(0.9).weight_decay(0.1);
  return {std::make_unique<FusedSgd>(two_groups(a, own), defaults),
          std::make_unique<torch::optim::SGD>(two_groups(b, own), defaults)};
}
Pair make_nesterov(const Tensors& a, const Tensors& b) {
  const auto defaults = torch::optim::SGDOptions(0.05).momentum(0.8).nesterov(true);
  const auto own = torch::optim::SGDOptions(0.02).momentum(0.9).dampening(0.3);
  return {std::make_unique<FusedSgd>(two_groups(a, own), defaults),
          std::make_unique<torch::optim::SGD>(two_groups(b, own), defaults)};
}

struct Case {
  const char* name;
  MakePair make;
};

class FusedOptimizer : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, FusedOptimizer,
                         testing::Values(Case{"adamw", make_adamw}, Case{"sgd", make_sgd},
                                         Case{"nesterov", make_nesterov}),
                         [](const auto& test) { return test.param.name; });

// Enough elements for the vectors of the kernels.
TEST_P(FusedOptimizer, FollowsTorchInHalfTypes) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const auto make = [type] {
      Tensors parameters;
      for (const std::int64_t size : {100, 40, 7}) {
        const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(size));
        parameters.push_back(at::randn({size}, generator, at::kFloat).to(type).set_requires_grad(true));
      }
      return parameters;
    };
    const Tensors a = make();
    const Tensors b = make();
    const Tensors before = make();
    const auto [fused, reference] = GetParam().make(a, b);
    for (std::uint64_t step = 0; step < 5; ++step) {
      const Tensors gradients = make_gradients(a, step);
      for (std::size_t i = 0; i < a.size(); ++i) {
        a[i].mutable_grad() = gradients[i].to(type);
        b[i].mutable_grad() = gradients[i].to(type);
      }
      fused->step();
      reference->step();
    }
    const double tolerance = GetParam().make == make_adamw ? 0.1 : 0.05;  // it divides numbers that were rounded
    EXPECT_LT(largest_difference(a, b), tolerance) << type;
    EXPECT_GT(largest_difference(a, before), 0.05) << type;
  }
}

// A complex parameter is trained as its real and imaginary parts would be.
TEST_P(FusedOptimizer, TrainsComplexParametersAsPairsOfNumbers) {
  const Tensors seeds = make_parameters();
  Tensors complex;
  Tensors pairs;
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    const bool is_complex = i % 2 == 0;
    const auto real = at::stack({seeds[i].detach(), seeds[i].detach() * 0.5 - 1}, -1);
    pairs.push_back((is_complex ? real : seeds[i].detach()).clone().set_requires_grad(true));
    complex.push_back(
        (is_complex ? at::view_as_complex(real).clone() : seeds[i].detach().clone()).set_requires_grad(true));
  }
  const auto found = GetParam().make(complex, complex).fused;
  const auto expected = GetParam().make(pairs, pairs).fused;
  for (std::uint64_t step = 0; step < 5; ++step) {
    const Tensors gradients = make_gradients(pairs, step);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      pairs[i].mutable_grad() = gradients[i];
      const bool lazily = step % 2 == 1;  // a conjugate of the conjugate, as backward formulas return it
      const auto whole = complex[i].is_complex() ? at::view_as_complex(gradients[i]) : gradients[i];
      complex[i].mutable_grad() = lazily && complex[i].is_complex() ? whole.conj().resolve_conj().conj() : whole;
    }
    found->step();
    expected->step();
  }
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto real = complex[i].is_complex() ? at::view_as_real(complex[i].detach()) : complex[i].detach();
    EXPECT_TRUE(at::equal(real, pairs[i].detach())) << i;
  }
}

TEST_P(FusedOptimizer, EqualsTorchStepByStep) {
  const Tensors a = make_parameters();
  const Tensors b = make_parameters();
  const auto [fused, reference] = GetParam().make(a, b);
  // Each parameter has its own pattern of absence; number 3 joins at step 4, and steps 12 and 13 have nobody at all.
  const auto skip = [](std::uint64_t step) {
    return [step](std::size_t i) {
      return step == 12 || step == 13 || (i == 3 && step < 4) || (i == 1 && step % 3 == 1) || (i == 2 && step % 5 >= 3);
    };
  };
  for (std::uint64_t step = 0; step < 25; ++step) {
    if (step == 10) {
      set_lr(*fused, 0.004);
      set_lr(*reference, 0.004);
    }
    set_gradients(a, step, skip(step));
    set_gradients(b, step, skip(step));
    fused->step();
    reference->step();
    ASSERT_LT(largest_difference(a, b), 1e-6) << "step " << step;
  }
  // The bound notices one step at a rate that is 1 % off.
  set_lr(*fused, 0.00404);
  set_gradients(a, 25, kNone);
  set_gradients(b, 25, kNone);
  fused->step();
  reference->step();
  EXPECT_GT(largest_difference(a, b), 1e-6);
}

TEST_P(FusedOptimizer, TakesGroupsThatAreAddedLater) {
  Tensors a = make_parameters();
  Tensors b = make_parameters();
  const auto [fused, reference] = GetParam().make({a.begin(), a.end() - 3}, {b.begin(), b.end() - 3});
  for (std::uint64_t step = 0; step < 6; ++step) {
    if (step == 3) {
      fused->add_param_group(OptimizerParamGroup(Tensors(a.end() - 3, a.end())));
      reference->add_param_group(OptimizerParamGroup(Tensors(b.end() - 3, b.end())));
    }
    set_gradients(a, step, kNone);
    set_gradients(b, step, kNone);
    fused->step();
    reference->step();
    ASSERT_LT(largest_difference(a, b), 1e-6) << "step " << step;
  }
}

TEST_P(FusedOptimizer, IsNotWrittenIntoAnArchive) {
  const Tensors a = make_parameters();
  const auto fused = GetParam().make(a, a).fused;
  torch::serialize::OutputArchive archive;
  const auto error = error_of([&] { fused->save(archive); });
  EXPECT_STREQ(error.what(), "this optimizer cannot be written into an archive of torch::save");
  EXPECT_EQ(error.hint(), "use the Trainer's checkpoints, or Strategy::optimizer_state()");
}

TEST_P(FusedOptimizer, FollowsTheLayoutOfTheParameter) {
  Tensors a{at::randn({2, 3, 4, 5}, at::make_generator<at::CPUGeneratorImpl>(1), at::kFloat)
                .contiguous(at::MemoryFormat::ChannelsLast),
            at::ones({2}), at::ones({2})};
  Tensors b{a[0].clone(), at::ones({2}), at::ones({2})};
  const auto [fused, reference] = GetParam().make(a, b);
  for (std::uint64_t step = 0; step < 3; ++step) {
    const at::Tensor gradient = at::randn({2, 3, 4, 5}, at::make_generator<at::CPUGeneratorImpl>(step), at::kFloat);
    for (Tensors* parameters : {&a, &b}) {
      (*parameters)[0].mutable_grad() = gradient;
      (*parameters)[2].mutable_grad() = at::full({1}, 0.5).expand({2});  // stride 0
    }
    fused->step();
    reference->step();
    ASSERT_LT(largest_difference(a, b), 1e-6) << "step " << step;
  }
}

TEST_P(FusedOptimizer, ReleasesGradients) {
  const Tensors a = make_parameters();
  const auto fused = GetParam().make(a, a).fused;
  set_gradients(a, 0, kNone);
  fused->step();
  EXPECT_EQ(a[0].grad().use_count(), 1U);
}

std::set<std::filesystem::path> threads_of_this_process() {
  std::set<std::filesystem::path> found;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    found.insert(thread.path());
  }
  return found;
}

// At its first parallel operation a thread starts its helpers, which it keeps.
TEST_P(FusedOptimizer, StartsNoThreadForSmallTensors) {
  const int threads = at::get_num_threads();
  const auto started_by_an_update = [&](std::int64_t elements) {
    std::ptrdiff_t started = 0;
    std::thread([&] {
      at::set_num_threads(2);
      const at::Tensor x = at::ones({elements}).set_requires_grad(true);
      const at::Tensor small = at::ones({3}).set_requires_grad(true);
      const auto fused = GetParam().make({small, small, x}, {small, small, x}).fused;
      x.mutable_grad() = at::ones({elements});
      const auto before = threads_of_this_process();
      fused->step();
      const auto after = threads_of_this_process();
      started = std::ranges::count_if(after, [&](const auto& thread) { return !before.contains(thread); });
      EXPECT_EQ(at::get_num_threads(), 2) << "the thread has its number again";
    }).join();
    at::set_num_threads(threads);
    return started;
  };
  EXPECT_EQ(started_by_an_update(32'767), 0);
  EXPECT_EQ(started_by_an_update(32'768), 1);  // also the control
}

TEST_P(FusedOptimizer, AcceptsReplacedStates) {
  const Tensors a = make_parameters();
  const Tensors b = make_parameters();
  const auto [fused, reference] = GetParam().make(a, b);
  for (std::uint64_t step = 0; step < 6; ++step) {
    if (step == 3) {
      fused->state().clear();
      reference->state().clear();
    }
    set_gradients(a, step, kNone);
    set_gradients(b, step, kNone);
    fused->step();
    reference->step();
    ASSERT_LT(largest_difference(a, b), 1e-6) << "step " << step;
  }
}

TEST_P(FusedOptimizer, NamesTheParameterWithASparseGradient) {
  const Tensors a = make_parameters();
  const auto fused = GetParam().make(a, a).fused;
  set_gradients(a, 0, kNone);
  a[3].mutable_grad() = at::ones({1}).to_sparse();
  const auto error = error_of([&] { fused->step(); });
  EXPECT_STREQ(error.what(), "parameter 1 of group 1: the gradient is sparse, expected a dense one");
  EXPECT_EQ(error.hint(), "use torch::optim::SGD without momentum for this parameter");
}

TEST_P(FusedOptimizer, NamesAParameterWithGaps) {
  const at::Tensor gaps = at::ones({4, 4}).slice(1, 0, 2);
  const Tensors a{at::ones({2}), gaps};
  const auto fused = GetParam().make(a, a).fused;
  gaps.mutable_grad() = at::ones({4, 2});
  EXPECT_THAT([&] { fused->step(); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("parameter 1 of group 0: its memory has gaps")));
}

TEST_P(FusedOptimizer, CallsTheClosureWithGradients) {
  const at::Tensor x = at::ones({3}).set_requires_grad(true);
  const auto fused = GetParam().make({x, at::ones({1})}, {x, at::ones({1})}).fused;
  const at::NoGradGuard no_grad;
  const at::Tensor loss = fused->step([&] {
    at::Tensor value = x.square().sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(loss.item<float>(), 3);
  EXPECT_LT(x.max().item<float>(), 1);
}

std::set<const void*> counters(const FusedAdamW& optimizer) {
  std::set<const void*> different;
  for (const auto& [parameter, state] : optimizer.state()) {
    different.insert(static_cast<const FusedAdamWState&>(*state).step.unsafeGetTensorImpl());
  }
  return different;
}

double step_of(const FusedAdamW& optimizer, const at::Tensor& parameter) {
  return static_cast<const FusedAdamWState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()))
      .step.item<double>();
}

TEST(FusedAdamW, SharesOneCounterAmongEqualHistories) {
  const Tensors a = make_parameters();
  FusedAdamW optimizer({OptimizerParamGroup(a)});
  for (std::uint64_t step = 0; step < 3; ++step) {
    set_gradients(a, step, kNone);
    optimizer.step();
  }
  EXPECT_EQ(counters(optimizer).size(), 1U);

  set_gradients(a, 3, [](std::size_t i) { return i < 2; });
  optimizer.step();
  set_gradients(a, 4, kNone);
  optimizer.step();
  EXPECT_EQ(counters(optimizer).size(), 2U);
  EXPECT_EQ(step_of(optimizer, a[0]), 4);
  EXPECT_EQ(step_of(optimizer, a[5]), 5);
}

TEST(FusedAdamW, SharesCountersAgainOnRequest) {
  const Tensors a = make_parameters();
  FusedAdamW optimizer({OptimizerParamGroup(a)});
  for (std::uint64_t step = 0; step < 2; ++step) {  // each half misses one step
    set_gradients(a, step, [&](std::size_t i) { return i % 2 == step; });
    optimizer.step();
  }
  ASSERT_EQ(counters(optimizer).size(), 2U);
  optimizer.share_steps();
  EXPECT_EQ(counters(optimizer).size(), 1U);
  set_gradients(a, 2, kNone);
  optimizer.step();
  EXPECT_EQ(step_of(optimizer, a[0]), 2);
  EXPECT_EQ(step_of(optimizer, a[1]), 2);
}

TEST(FusedAdamW, StatesCanBeCloned) {
  const Tensors a = make_parameters();
  FusedAdamW optimizer({OptimizerParamGroup(a)});
  set_gradients(a, 0, kNone);
  optimizer.step();
  const torch::optim::OptimizerParamState& state = *optimizer.state().at(a[0].unsafeGetTensorImpl());
  const auto copy = state.clone();
  const auto& original = static_cast<const FusedAdamWState&>(state);
  const auto& cloned = dynamic_cast<const FusedAdamWState&>(*copy);
  EXPECT_TRUE(cloned.exp_avg.is_same(original.exp_avg));
  EXPECT_TRUE(cloned.step.is_same(original.step));
}

TEST(FusedAdamW, TakesHalfAndDoubleParameters) {
  const Tensors a{at::ones({4}, at::kDouble), at::ones({4}, at::kBFloat16), at::ones({4})};
  FusedAdamW optimizer({OptimizerParamGroup(a)}, torch::optim::AdamWOptions(0.25).weight_decay(0));
  for (const at::Tensor& parameter : a) {
    parameter.mutable_grad() = at::ones_like(parameter);
  }
  optimizer.step();
  for (const at::Tensor& parameter : a) {
    EXPECT_NEAR(parameter[0].item<double>(), 0.75, 1e-6) << parameter.scalar_type();
  }
}

}  // namespace
}  // namespace lockstep
