#include <thread>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <lockstep/optim/precision.h>

namespace lockstep {
namespace {

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

}  // namespace
}  // namespace lockstep
