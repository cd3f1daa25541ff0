// Results that were rounded to bfloat16.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace lockstep {

inline constexpr double kBfloat16Ulp = 1.0 / 128;  // of a bfloat16 between 1 and 2; half of it below 1

/// Each number of `found` is one of the two bfloat16 numbers next to that of `exact`, which has an error of 1e-6.
inline void expect_neighbours(const at::Tensor& found, const at::Tensor& exact, const std::string& what) {
  ASSERT_EQ(found.scalar_type(), at::kBFloat16) << what;
  const at::Tensor expected = exact.to(at::kCPU, at::kDouble);
  const at::Tensor rounded = found.to(at::kCPU, at::kDouble);
  const at::Tensor distance = (rounded - expected).abs();
  const at::Tensor is_next = (distance <= expected.abs() * (kBfloat16Ulp + 1e-6) + 1e-30)
                                 .logical_or(rounded.isnan().logical_and(expected.isnan()));
  EXPECT_TRUE(is_next.all().item<bool>()) << what << ": " << rounded.index({is_next.logical_not()}) << " instead of "
                                          << expected.index({is_next.logical_not()});
}

}  // namespace lockstep
