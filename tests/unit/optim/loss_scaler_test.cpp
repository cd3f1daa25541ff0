#include "optim/loss_scaler.h"

#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <lockstep/base/error.h>
#include <lockstep/optim/optimizers.h>

#include "optim/fused_adamw.h"
#include "optim/fused_sgd.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The scale after each step; `infinite`: whether the step has an infinite gradient.
std::vector<float> scales(LossScaler& scaler, const std::vector<bool>& infinite) {
  std::vector<float> found;
  at::Tensor parameter = at::ones({3});
  torch::optim::SGD optimizer({parameter}, torch::optim::SGDOptions(0.1));
  for (const bool is_infinite : infinite) {
    parameter.mutable_grad() = at::full({3}, is_infinite ? kInfinity : 1.0F);
    scaler.unscale(std::vector<at::Tensor>{parameter.grad()});
    scaler.step(optimizer);
    found.push_back(scaler.scale().item<float>());
  }
  return found;
}

// The rule of torch.amp.GradScaler: twice after growth_interval good steps in a row, half after a bad one.
TEST(LossScaler, GrowsAndShrinks) {
  LossScaler scaler(at::kCPU, {.initial = 16, .growth_interval = 3});
  EXPECT_THAT(scales(scaler, {false, false, false, false, true, false, false, true, true, false, false, false}),
              ElementsAre(16, 16, 32, 32, 16, 16, 16, 8, 4, 4, 4, 8));
}

TEST(LossScaler, MultipliesTheLossAndDividesTheGradients) {
  LossScaler scaler(at::kCPU, {.initial = 1024});
  EXPECT_EQ(scaler.scaled(at::full({}, 0.5), at::kFloat).item<float>(), 512);
  EXPECT_EQ(scaler.scaled(at::full({}, 0.5), at::kHalf).scalar_type(), at::kHalf);
  const std::vector<at::Tensor> gradients{at::full({2}, 2048.0F), at::full({2}, 512.0, at::kDouble)};
  scaler.unscale(gradients);
  EXPECT_TRUE(at::equal(gradients[0], at::full({2}, 2.0F)));
  EXPECT_TRUE(at::equal(gradients[1], at::full({2}, 0.5, at::kDouble)));
  EXPECT_EQ(scaler.found_inf().item<float>(), 0);
}

TEST(LossScaler, DividesGradientsOfEveryDtype) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    LossScaler scaler(at::kCPU, {.initial = 4});
    const std::vector<at::Tensor> gradients{at::full({3}, 8.0, dtype), at::full({2, 2}, 1.0, dtype)};
    scaler.unscale(gradients);
    EXPECT_TRUE(at::equal(gradients[0], at::full({3}, 2.0, dtype))) << dtype;
    EXPECT_TRUE(at::equal(gradients[1], at::full({2, 2}, 0.25, dtype))) << dtype;
    EXPECT_EQ(scaler.found_inf().item<float>(), 0) << dtype;
    gradients[1].view({-1})[2] = kInfinity;
    scaler.unscale(gradients);
    EXPECT_EQ(scaler.found_inf().item<float>(), 1) << dtype;
  }
}

// Of a parameter without elements, or of an embedding of which no row was used.
TEST(LossScaler, TakesGradientsWithoutElements) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    LossScaler scaler(at::kCPU, {.initial = 4});
    const at::Tensor empty = at::zeros({0, 3}, dtype);
    const at::Tensor full = at::full({3}, 8.0, dtype);
    scaler.unscale(std::vector<at::Tensor>{empty});
    scaler.unscale(std::vector<at::Tensor>{empty, full});
    EXPECT_TRUE(at::equal(full, at::full({3}, 2.0, dtype))) << dtype;
    EXPECT_EQ(scaler.found_inf().item<float>(), 0) << dtype;
    full[1] = kInfinity;
    scaler.unscale(std::vector<at::Tensor>{empty, full});
    EXPECT_EQ(scaler.found_inf().item<float>(), 1) << dtype;
  }
}

TEST(LossScaler, NoticesOneInfinityAmongMany) {
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    LossScaler scaler(at::kCPU);
    std::vector<at::Tensor> gradients{at::ones({100}), at::ones({7}, at::kDouble)};
    gradients[0][99] = bad;
    scaler.unscale(gradients);
    EXPECT_EQ(scaler.found_inf().item<float>(), 1);
  }
}

/// A step with infinite gradients, first or after others, changes no bit of parameters and state.
template <class Optimizer>
void expect_unchanged(Optimizer& optimizer, at::Tensor parameter, bool after_a_good_step) {
  LossScaler scaler(at::kCPU, {.initial = 1});
  const auto step = [&](float gradient) {
    parameter.mutable_grad() = at::full({4}, gradient);
    scaler.unscale(std::vector<at::Tensor>{parameter.grad()});
    scaler.step(optimizer);
  };
  if (after_a_good_step) {
    step(0.5F);
  }
  const at::Tensor before = parameter.clone();
  step(kInfinity);
  EXPECT_TRUE(at::equal(parameter, before));

  // What follows is as if the skipped step had not been.
  step(0.25F);
  const at::Tensor after = parameter.clone();
  EXPECT_FALSE(at::equal(after, before));
  EXPECT_TRUE(at::isfinite(after).all().item<bool>());
}

TEST(LossScaler, ASkippedStepChangesNothing) {
  for (const bool after : {false, true}) {
    at::Tensor a = at::ones({4});
    FusedAdamW adamw(ParamGroups{torch::optim::OptimizerParamGroup({a})});
    expect_unchanged(adamw, a, after);
    const auto& state = static_cast<const FusedAdamWState&>(*adamw.state().at(a.unsafeGetTensorImpl()));
    EXPECT_EQ(state.step.item<float>(), after ? 2 : 1);  // the skipped step does not count

    at::Tensor b = at::ones({4});
    FusedSgd sgd(ParamGroups{torch::optim::OptimizerParamGroup({b})},
                 torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.5));
    expect_unchanged(sgd, b, after);

    at::Tensor c = at::ones({4});
    torch::optim::SGD plain(std::vector<at::Tensor>{c}, torch::optim::SGDOptions(0.1).momentum(0.9));
    expect_unchanged(plain, c, after);
  }
}

TEST(LossScaler, KeepsItsState) {
  LossScaler scaler(at::kCPU, {.initial = 16, .growth_interval = 3});
  scales(scaler, {false, false, false, false, false});
  const NamedTensors state = scaler.state("a");
  LossScaler other(at::kCPU, {.initial = 1, .growth_interval = 3});
  other.load_state("a", state);
  EXPECT_EQ(scales(other, {false}), scales(scaler, {false}));
  EXPECT_EQ(other.scale().item<float>(), 64);

  LossScaler fresh(at::kCPU, {.initial = 7});
  fresh.load_state("b", state);  // of another optimizer
  EXPECT_EQ(fresh.scale().item<float>(), 7);
  NamedTensors wrong = state;
  wrong.front().second = at::ones({2});
  EXPECT_THAT([&] { fresh.load_state("a", wrong); },
              ThrowsMessage<CheckpointError>(HasSubstr("a.scale: found 2 numbers of dtype Float, expected one of dtype "
                                                       "Float")));
}

}  // namespace
}  // namespace lockstep
