#include "parallel/stochastic_rounding.h"

#include <algorithm>
#include <cstdint>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "base/vectorized.h"

namespace lockstep {
namespace {

// The hash lowbias32 (Wellons 2018) of position and key; its upper half is used.
constexpr std::uint32_t kFirstFactor = 0x7feb352d;
constexpr std::uint32_t kSecondFactor = 0x846ca68b;
constexpr std::int64_t kLow32 = 0xffffffff;

/// 16 random bits for each position from `begin` to `end`, in 64-bit integers, whose products here cannot overflow.
/// Shape: [end - begin], int32.
at::Tensor random_bits(std::int64_t begin, std::int64_t end, std::uint64_t key, c10::Device device) {
  const auto low = static_cast<std::int64_t>(key & kLow32);
  const auto high = static_cast<std::int64_t>(key >> 32);
  at::Tensor x = at::arange(begin + low, end + low, at::TensorOptions().device(device).dtype(at::kLong));
  x.bitwise_and_(kLow32);
  x.bitwise_xor_(x.bitwise_right_shift(16)).mul_(std::int64_t{kFirstFactor}).bitwise_and_(kLow32).bitwise_xor_(high);
  x.bitwise_xor_(x.bitwise_right_shift(15)).mul_(std::int64_t{kSecondFactor} - kLow32 - 1).bitwise_and_(kLow32);
  return x.bitwise_right_shift_(16).to(at::kInt);
}

/// The bits of floats as those of bfloat16.
LOCKSTEP_VECTORIZED void round_bits(const std::uint32_t* from, std::uint16_t* to, std::int64_t begin, std::int64_t end,
                                    std::uint64_t key) noexcept {
  constexpr std::uint32_t kInfinity = 0x7f800000;
  constexpr std::uint32_t kQuiet = 0x00400000;  // otherwise the upper half of NaN may be that of infinity
  const auto low = static_cast<std::uint32_t>(key);
  const auto high = static_cast<std::uint32_t>(key >> 32);
  for (std::int64_t i = begin; i < end; ++i) {
    std::uint32_t x = static_cast<std::uint32_t>(i) + low;
    x = ((x ^ (x >> 16)) * kFirstFactor) ^ high;
    x = (x ^ (x >> 15)) * kSecondFactor;
    const std::uint32_t bits = from[i];
    const std::uint32_t magnitude = bits & 0x7fffffff;
    const std::uint32_t added = magnitude < kInfinity ? x >> 16 : magnitude > kInfinity ? kQuiet & ~bits : 0;
    to[i] = static_cast<std::uint16_t>((bits + added) >> 16);
  }
}

}  // namespace

// The bits of a bfloat16 are the upper half of those of a float. Adding 16 random bits to the lower half carries into
// the upper one with a probability of lower half / 2^16.
at::Tensor rounded_by_operations(const at::Tensor& values, std::uint64_t key) {
  constexpr std::int64_t kSlice = 1 << 22;  // limits the memory for the bits
  constexpr std::int64_t kUpperHalf = -(1 << 16);
  const at::Tensor from = values.view({-1});
  at::Tensor rounded = at::empty(values.sizes(), values.options().dtype(at::kBFloat16));
  const at::Tensor to = rounded.view({-1});
  for (std::int64_t begin = 0; begin < from.numel(); begin += kSlice) {
    const std::int64_t end = std::min(begin + kSlice, from.numel());
    const at::Tensor part = from.slice(0, begin, end);
    const at::Tensor finite = part.isfinite();
    at::Tensor bits = at::where(finite, part, 0).view(at::kInt);
    bits = random_bits(begin, end, key, values.device()).add_(bits).bitwise_and_(kUpperHalf);
    to.slice(0, begin, end).copy_(at::where(finite, bits.view(at::kFloat), part));
  }
  return rounded;
}

at::Tensor stochastically_rounded(const at::Tensor& values, std::uint64_t key) {
  const at::NoGradGuard no_grad;
  if (!values.is_cpu()) {
    return rounded_by_operations(values, key);
  }
  at::Tensor rounded = at::empty(values.sizes(), values.options().dtype(at::kBFloat16));
  constexpr std::int64_t kGrain = 1 << 15;  // elements; fewer are not worth another thread
  const auto* const from = values.view(at::kUInt32).const_data_ptr<std::uint32_t>();
  auto* const to = rounded.view(at::kUInt16).mutable_data_ptr<std::uint16_t>();
  at::parallel_for(0, values.numel(), kGrain,
                   [&](std::int64_t begin, std::int64_t end) { round_bits(from, to, begin, end, key); });
  return rounded;
}

}  // namespace lockstep
