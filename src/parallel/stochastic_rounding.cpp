#include "parallel/stochastic_rounding.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace lockstep {
namespace {

constexpr std::int64_t kLow32 = 0xffffffff;

/// 16 random bits for each position from `begin` to `end`: the hash lowbias32 (Wellons 2018) of position and key, in
/// 64-bit integers, whose products here cannot overflow. Shape: [end - begin], int32.
at::Tensor random_bits(std::int64_t begin, std::int64_t end, std::uint64_t key, c10::Device device) {
  const auto low = static_cast<std::int64_t>(key & kLow32);
  const auto high = static_cast<std::int64_t>(key >> 32);
  at::Tensor x = at::arange(begin + low, end + low, at::TensorOptions().device(device).dtype(at::kLong));
  x.bitwise_and_(kLow32);
  x.bitwise_xor_(x.bitwise_right_shift(16)).mul_(0x7feb352d).bitwise_and_(kLow32).bitwise_xor_(high);
  x.bitwise_xor_(x.bitwise_right_shift(15)).mul_(std::int64_t{0x846ca68b} - kLow32 - 1).bitwise_and_(kLow32);
  return x.bitwise_right_shift_(16).to(at::kInt);
}

}  // namespace

// The bits of a bfloat16 are the upper half of those of a float. Adding 16 random bits to the lower half carries into
// the upper one with a probability of lower half / 2^16.
at::Tensor stochastically_rounded(const at::Tensor& values, std::uint64_t key) {
  const at::NoGradGuard no_grad;
  const std::int64_t slice = values.is_cpu() ? 1 << 15 : 1 << 22;  // a slice of a CPU stays in its cache
  constexpr std::int64_t kUpperHalf = -(1 << 16);
  const at::Tensor from = values.view({-1});
  at::Tensor rounded = at::empty(values.sizes(), values.options().dtype(at::kBFloat16));
  const at::Tensor to = rounded.view({-1});
  for (std::int64_t begin = 0; begin < from.numel(); begin += slice) {
    const std::int64_t end = std::min(begin + slice, from.numel());
    const at::Tensor part = from.slice(0, begin, end);
    const at::Tensor finite = part.isfinite();
    at::Tensor bits = at::where(finite, part, 0).view(at::kInt);
    bits = random_bits(begin, end, key, values.device()).add_(bits).bitwise_and_(kUpperHalf);
    to.slice(0, begin, end).copy_(at::where(finite, bits.view(at::kFloat), part));
  }
  return rounded;
}

}  // namespace lockstep
