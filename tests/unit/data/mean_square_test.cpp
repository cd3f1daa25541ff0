// The mean square of the inputs of a batch.
#include "data/mean_square.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace lockstep {
namespace {

double value_of(const Batch& batch) {
  const at::Tensor square = mean_square(batch, c10::kCPU);
  EXPECT_EQ(square.scalar_type(), at::kDouble);
  EXPECT_EQ(square.dim(), 0);
  return square.item<double>();
}

TEST(MeanSquare, IsThatOfAllNumbersOfInputAndFields) {
  const Batch batch{
      .input = at::full({2, 3}, 2.0),
      .target = at::full({2}, 100.0),
      .fields = {{"audio", at::full({2, 4}, 3.0, at::kDouble)}, {"tokens", at::full({2, 9}, 100, at::kLong)}},
      .weight = at::full({2}, 100.0)};
  EXPECT_NEAR(value_of(batch), (6 * 4 + 8 * 9) / 14.0, 1e-6);
}

TEST(MeanSquare, IsUndefinedWithoutSuchNumbers) {
  EXPECT_FALSE(mean_square({}, c10::kCPU).defined());
  EXPECT_FALSE(mean_square({.input = at::ones({2, 3}, at::kLong), .target = at::ones({2})}, c10::kCPU).defined());
  EXPECT_FALSE(mean_square({.input = at::ones({0, 3})}, c10::kCPU).defined());
}

TEST(MeanSquare, IsTheSameForAllTypesAndLayouts) {
  const at::Tensor numbers = (at::arange(2 * 3 * 4 * 5, at::kFloat).remainder(7) - 3).view({2, 3, 4, 5});
  const double expected = numbers.to(at::kDouble).square().mean().item<double>();
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn}) {
    EXPECT_NEAR(value_of({.input = numbers.to(type)}), expected, 1e-6) << type;
  }
  for (const at::Tensor& same : {numbers.flatten(), numbers.transpose(0, 3), numbers.to_sparse(),
                                 numbers.contiguous(at::MemoryFormat::ChannelsLast),
                                 at::view_as_complex(numbers.view({2, 3, 10, 2}).contiguous()).conj()}) {
    EXPECT_NEAR(value_of({.input = same}), expected, 1e-6) << same.sizes();
  }
  EXPECT_DOUBLE_EQ(value_of({.input = at::scalar_tensor(3.0)}), 9);
}

TEST(MeanSquare, OfLargestNumbersInHalfPrecisionIsFinite) {
  EXPECT_NEAR(value_of({.input = at::full({64, 1000}, 65504, at::kHalf)}), 65504.0 * 65504.0, 1e4);
}

TEST(MeanSquare, IsExactForLargeBatches) {
  const at::Tensor numbers = at::sin(at::arange(16 * 100'000, at::kDouble)).to(at::kFloat).view({16, 100'000}) + 0.5;
  const double expected = numbers.to(at::kDouble).square().mean().item<double>();
  EXPECT_NEAR(value_of({.input = numbers}), expected, 1e-5 * expected);
}

TEST(MeanSquare, IsNotFiniteIfANumberIsNot) {
  at::Tensor numbers = at::ones({2, 3});
  numbers[1][2].fill_(std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isinf(value_of({.input = numbers})));
  numbers[0][0].fill_(std::nan(""));
  EXPECT_TRUE(std::isnan(value_of({.input = numbers})));
}

}  // namespace
}  // namespace lockstep
