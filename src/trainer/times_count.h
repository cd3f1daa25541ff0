// Means weighted by counts that only the device knows.
#pragma once

#include <ATen/ATen.h>

namespace lockstep {

/// The sum that belongs to a mean over `count`, in double precision. If the count is 0, the mean may be NaN.
inline at::Tensor times_count(const at::Tensor& mean, const at::Tensor& count) {
  return at::where(count > 0, mean.detach().to(at::kDouble) * count, 0);
}

}  // namespace lockstep
