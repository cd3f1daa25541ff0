// Means weighted by counts that only the device knows.
#pragma once

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include <lockstep/base/error.h>

namespace lockstep {

/// Throws: DataError if the host can see without waiting that the count is negative, or not a number.
inline void check_count(const at::Tensor& count) {
  if (!count.defined() || !count.is_cpu() || count.numel() != 1) {
    return;
  }
  // Not item(), which is an operation of LibTorch for each micro-batch.
  const double value =
      AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, count.scalar_type(), "StepOutput::count",
                                 [&] { return static_cast<double>(*count.const_data_ptr<scalar_t>()); });
  if (!(value >= 0)) {
    throw DataError(fmt::format("StepOutput::count is {}, expected 0 or more", value),
                    "it is the number by which the loss was divided, for example of the tokens that count");
  }
}

/// The sum that belongs to a mean over `count`, in double precision. If the count is 0, the mean may be NaN.
inline at::Tensor times_count(const at::Tensor& mean, const at::Tensor& count) {
  return at::where(count > 0, mean.detach().to(at::kDouble) * count, 0);
}

}  // namespace lockstep
