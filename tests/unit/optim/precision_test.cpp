#include <memory>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <lockstep/base/variables.h>
#include <lockstep/optim/precision.h>

#include "support/message_of.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

at::ScalarType product_type() { return at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type(); }

TEST(AutocastScope, RunsInBfloat16WhileItExists) {
  {
    const AutocastScope scope(Precision::bf16_mixed, at::kCPU);
    EXPECT_EQ(product_type(), at::kBFloat16);
  }
  EXPECT_EQ(product_type(), at::kFloat);
}

TEST(AutocastScope, DoesNothingInFp32) {
  const AutocastScope scope(Precision::fp32, at::kCPU);
  EXPECT_EQ(product_type(), at::kFloat);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST(AutocastScope, RestoresThePreviousSettings) {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  at::autocast::set_autocast_cache_enabled(false);
  {
    const AutocastScope outer(Precision::bf16_mixed, at::kCPU);
    {
      const AutocastScope inner(Precision::bf16_mixed, at::kCPU);
      EXPECT_EQ(product_type(), at::kBFloat16);
    }
    EXPECT_EQ(product_type(), at::kBFloat16);
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  }
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kHalf);
  EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
  at::autocast::set_autocast_cache_enabled(true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, false);
}

TEST(AutocastScope, CastsChangedWeightsAgain) {
  const at::Tensor weight = at::ones({1, 1}).set_requires_grad(true);
  const auto product = [&] {
    const AutocastScope outer(Precision::bf16_mixed, at::kCPU);
    const AutocastScope inner(Precision::bf16_mixed, at::kCPU);
    return at::mm(at::ones({1, 1}), weight).item<float>();
  };
  EXPECT_EQ(product(), 1);
  weight.data().fill_(3);
  EXPECT_EQ(product(), 3);
}

TEST(AutocastScope, AffectsOnlyThisThread) {
  const AutocastScope scope(Precision::bf16_mixed, at::kCPU);
  at::ScalarType elsewhere{};
  std::thread([&] { elsewhere = product_type(); }).join();
  EXPECT_EQ(elsewhere, at::kFloat);
}

TEST(NumericsScope, RestoresTheSettingsWithTheLastScope) {
  const TrainConfig config{.matmul_precision = MatmulPrecision::high, .deterministic = Determinism::warn};
  const at::Context& context = at::globalContext();
  const bool had_variable = read_environment().has("CUBLAS_WORKSPACE_CONFIG");
  auto first = std::make_unique<NumericsScope>(config);
  std::unique_ptr<NumericsScope> second;
  std::thread([&] { second = std::make_unique<NumericsScope>(config); }).join();
  first.reset();
  EXPECT_TRUE(context.deterministicAlgorithms());
  EXPECT_EQ(context.float32MatmulPrecision(), at::Float32MatmulPrecision::HIGH);
  EXPECT_TRUE(read_environment().has("CUBLAS_WORKSPACE_CONFIG"));
  second.reset();
  EXPECT_FALSE(context.deterministicAlgorithms());
  EXPECT_EQ(context.float32MatmulPrecision(), at::Float32MatmulPrecision::HIGHEST);
  EXPECT_EQ(read_environment().has("CUBLAS_WORKSPACE_CONFIG"), had_variable);
}

TEST(NumericsScope, MayHaveOtherValuesInsideOfAScopeOfItsThread) {
  const at::Context& context = at::globalContext();
  auto outer = std::make_unique<NumericsScope>(TrainConfig{.deterministic = Determinism::on});
  {
    const NumericsScope inner({.matmul_precision = MatmulPrecision::high, .deterministic = Determinism::warn});
    EXPECT_TRUE(context.deterministicAlgorithmsWarnOnly());
  }
  EXPECT_TRUE(context.deterministicAlgorithms());
  EXPECT_FALSE(context.deterministicAlgorithmsWarnOnly());
  auto inner = std::make_unique<NumericsScope>(TrainConfig{.matmul_precision = MatmulPrecision::high});
  outer.reset();
  inner.reset();
  EXPECT_FALSE(context.deterministicAlgorithms());
  EXPECT_EQ(context.float32MatmulPrecision(), at::Float32MatmulPrecision::HIGHEST);
}

TEST(NumericsScope, RefusesOtherValuesThanThoseOfAnotherThread) {
  const auto refusal_of = [](const TrainConfig& config) {
    std::string message;
    std::thread([&] { message = message_of<ConfigError>([&] { const NumericsScope scope(config); }); }).join();
    return message;
  };
  const TrainConfig deterministic{.deterministic = Determinism::on};
  const TrainConfig warning{.deterministic = Determinism::warn};
  {
    const NumericsScope scope(deterministic);
    EXPECT_THAT(refusal_of(warning), HasSubstr("a training in another thread of this process has other values of"));
    EXPECT_EQ(refusal_of(deterministic), "no error");
    EXPECT_EQ(refusal_of({}), "no error");
    const NumericsScope inner(warning);
    EXPECT_THAT(refusal_of(warning), HasSubstr("a training in another thread"));  // the outer one comes back
  }
  EXPECT_EQ(refusal_of(warning), "no error");
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
}

}  // namespace
}  // namespace lockstep
