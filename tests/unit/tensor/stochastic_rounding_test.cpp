#include "tensor/stochastic_rounding.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "base/splitmix.h"

namespace lockstep {
namespace {

constexpr double kUlp = 1.0 / 128;  // of a bfloat16 between 1 and 2

/// Mean of the rounding errors, in units of the last place.
double mean_error(const at::Tensor& rounded, double value) {
  return (rounded.to(at::kDouble) - value).mean().item<double>() / kUlp;
}

// With N draws, the mean error has a standard deviation of sqrt(f (1 - f) / N) for a value at the fraction f.
TEST(StochasticRounding, HasNoErrorOnAverage) {
  constexpr std::int64_t kDraws = 1 << 18;
  for (const double fraction : {0.01, 0.25, 0.5, 0.9}) {
    for (const double sign : {1.0, -1.0}) {
      const auto values = at::full({kDraws}, sign * (1 + fraction * kUlp), at::kFloat);
      const double value = values[0].item<double>();
      const double limit = 5 * std::sqrt(fraction * (1 - fraction) / kDraws);
      EXPECT_LE(std::abs(mean_error(stochastically_rounded(values, 7), value)), limit) << fraction;
      EXPECT_GT(std::abs(mean_error(values.to(at::kBFloat16), value)), limit) << "control: to nearest, " << fraction;
    }
  }
}

// The decisions at one position are independent from key to key, as from step to step.
TEST(StochasticRounding, HasNoErrorOnAverageOverKeys) {
  constexpr int kKeys = 4000;
  const auto values = at::full({8}, 1 + 0.25 * kUlp, at::kFloat);
  auto sum = at::zeros({8}, at::kDouble);
  for (int key = 0; key < kKeys; ++key) {
    sum.add_(stochastically_rounded(values, splitmix(static_cast<std::uint64_t>(key))).to(at::kDouble));
  }
  const auto errors = (sum / kKeys - values.to(at::kDouble)).abs() / kUlp;
  EXPECT_LE(errors.max().item<double>(), 5 * std::sqrt(0.25 * 0.75 / kKeys));
}

TEST(StochasticRounding, GivesANeighbour) {
  const auto values = at::sin(at::arange(100'000, at::kFloat)) * at::exp2(at::arange(100'000).remainder(200) - 100);
  const auto rounded = stochastically_rounded(values, 3);
  const auto bits = values.view(at::kInt).bitwise_and(-65536);
  const auto toward_zero = bits.view(at::kFloat);
  const auto away = (bits + 65536).view(at::kFloat);
  const auto found = rounded.to(at::kFloat);
  EXPECT_TRUE(at::logical_or(found == toward_zero, found == away).all().item<bool>());
  EXPECT_GT((found == toward_zero).sum().item<int>(), 40'000);
  EXPECT_GT((found == away).sum().item<int>(), 40'000);
}

TEST(StochasticRounding, KeepsWhatNeedsNone) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto values = at::tensor({0.0F, -0.0F, 1.5F, -3.0F, infinity, -infinity, 0x1p-133F}).repeat({100});
  const auto rounded = stochastically_rounded(values, 5).to(at::kFloat);
  EXPECT_TRUE(at::equal(rounded.view(at::kInt), values.view(at::kInt)));
  const auto nan_bits = at::tensor({0x7f800001, 0x7fffffff, -1}, at::kInt).repeat({100});
  EXPECT_TRUE(stochastically_rounded(nan_bits.view(at::kFloat), 5).isnan().all().item<bool>());
}

TEST(StochasticRounding, DependsOnKeyAndPositionAlone) {
  const auto generator = at::detail::getDefaultCPUGenerator();
  const auto before = generator.get_state();
  const auto values = at::sin(at::arange(100'000, at::kFloat));
  const auto rounded = stochastically_rounded(values, 1);
  EXPECT_TRUE(at::equal(stochastically_rounded(values, 1), rounded));
  EXPECT_TRUE(at::equal(stochastically_rounded(values.slice(0, 0, 40'001), 1), rounded.slice(0, 0, 40'001)));
  EXPECT_TRUE(at::equal(stochastically_rounded(values.view({1000, 100}), 1).view({-1}), rounded));
  for (const std::uint64_t key : {std::uint64_t{2}, splitmix(1), splitmix(2)}) {
    const double same = (stochastically_rounded(values, key) == rounded).to(at::kDouble).mean().item<double>();
    EXPECT_LT(same, 0.7) << key;  // 2/3 of the independent decisions agree on average
    EXPECT_GT(same, 0.63) << key;
  }
  EXPECT_TRUE(at::equal(generator.get_state(), before));
}

// Any bits are floats. Of NaN, LibTorch keeps no bits.
TEST(StochasticRounding, OfTheHostIsThatOfOperationsOnTensors) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
  constexpr std::int64_t kLeast = std::numeric_limits<std::int32_t>::min();
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  const auto special = at::tensor({0.0F, -0.0F, infinity, -infinity, largest, -largest, 0x1p-149F}).repeat({20});
  for (const std::int64_t size : {0, 1, 7, 31, 32, 33, 1000, 70'001}) {
    const auto values = at::cat({at::randint(kLeast, -kLeast, {size}, generator, at::kInt).view(at::kFloat), special});
    for (const std::uint64_t key : {std::uint64_t{0}, ~std::uint64_t{0}, splitmix(1), splitmix(2)}) {
      const auto found = stochastically_rounded(values, key);
      const at::Tensor expected = at::empty_like(found);
      round_by_operations(expected, values, key);
      const auto nan = values.isnan();
      EXPECT_TRUE(at::equal(found.isnan(), nan)) << size;
      EXPECT_TRUE(at::equal(found.view(at::kShort).masked_fill(nan, 0), expected.view(at::kShort).masked_fill(nan, 0)))
          << size << " values, key " << key;
    }
  }
}

TEST(StochasticRounding, MayBeginAtAnyPosition) {
  const auto values = at::rand({1000}, at::make_generator<at::CPUGeneratorImpl>(7), at::kFloat);
  for (const std::uint64_t key : {std::uint64_t{5}, ~std::uint64_t{0}, splitmix(1)}) {
    const auto whole = stochastically_rounded(values, key);
    for (const std::int64_t first : {0, 1, 333}) {
      const auto part = stochastically_rounded(values.slice(0, first), key_from(key, first));
      EXPECT_TRUE(at::equal(part, whole.slice(0, first))) << key << ", " << first;
    }
    EXPECT_FALSE(at::equal(stochastically_rounded(values.slice(0, 1), key), whole.slice(0, 1))) << "control";
  }
}

TEST(StochasticRounding, TakesNothing) { EXPECT_EQ(stochastically_rounded(at::empty({0}), 1).numel(), 0); }

}  // namespace
}  // namespace lockstep
