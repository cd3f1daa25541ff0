#include "parallel/tensor_digest.h"

#include <cstdint>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/view_as_real.h>

#include "base/vectorized.h"

namespace lockstep {
namespace {

at::ScalarType integer_of(std::int64_t bytes) {
  return bytes == 8 ? at::kLong : bytes == 4 ? at::kInt : bytes == 2 ? at::kShort : at::kByte;
}

LOCKSTEP_VECTORIZED std::int64_t sum_of(const std::int32_t* values, std::int64_t count) noexcept {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    sum += values[i];
  }
  return sum;
}

LOCKSTEP_VECTORIZED std::int64_t sum_of(const std::int16_t* values, std::int64_t count) noexcept {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    sum += values[i];
  }
  return sum;
}

}  // namespace

// LibTorch's sum of small integers first makes a tensor of 64-bit integers, twenty times slower than a loop.
at::Tensor digest_of(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor reals = tensor.is_complex() ? at::view_as_real(tensor) : tensor.detach();
  const at::Tensor bits = reals.view(integer_of(reals.element_size()));
  if (bits.is_cpu() && bits.is_non_overlapping_and_dense()) {
    if (bits.scalar_type() == at::kInt) {
      return at::scalar_tensor(sum_of(bits.const_data_ptr<std::int32_t>(), bits.numel()), at::kLong);
    }
    if (bits.scalar_type() == at::kShort) {
      return at::scalar_tensor(sum_of(bits.const_data_ptr<std::int16_t>(), bits.numel()), at::kLong);
    }
  }
  return bits.sum(at::kLong);
}

}  // namespace lockstep
