#include "tensor/stochastic_rounding.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "base/splitmix.h"
#include "base/vectorized.h"

namespace lockstep {
namespace {

// The hash lowbias32 (Wellons 2018) of position / 2 and key has 16 bits for each of two positions.
constexpr std::uint32_t kFirstFactor = 0x7feb352d;
constexpr std::uint32_t kSecondFactor = 0x846ca68b;
constexpr std::uint32_t kTopBit = 1 << 15;  // of the 16
constexpr std::int64_t kLow32 = 0xffffffff;

/// 16 random bits for each position from `begin` to `end`; the calculation is in 64-bit integers, whose products here
/// cannot overflow. Shape: [end - begin], int16.
at::Tensor random_bits(std::int64_t begin, std::int64_t end, std::uint64_t key, c10::Device device) {
  const auto high = static_cast<std::int64_t>(key >> 32);
  const std::int64_t first = begin + static_cast<std::int64_t>(key & kLow32);
  const std::int64_t last = first + end - begin;
  at::Tensor x = at::arange(first / 2, (last + 1) / 2, at::TensorOptions().device(device).dtype(at::kLong));
  x.bitwise_and_(kLow32 / 2);
  x.bitwise_xor_(x.bitwise_right_shift(16)).mul_(std::int64_t{kFirstFactor}).bitwise_and_(kLow32).bitwise_xor_(high);
  x.bitwise_xor_(x.bitwise_right_shift(15)).mul_(std::int64_t{kSecondFactor} - kLow32 - 1).bitwise_and_(kLow32);
  x.bitwise_xor_(x.bitwise_right_shift(16));
  return x.to(at::kInt).view(at::kShort).narrow(0, first % 2, end - begin);
}

/// The random bits of positions 2 * pair and 2 * pair + 1, in the lower and the upper half.
[[gnu::always_inline]] inline std::uint32_t bits_of_pair(std::uint32_t pair, std::uint32_t high) noexcept {
  std::uint32_t x = pair & 0x7fffffff;
  x = ((x ^ (x >> 16)) * kFirstFactor) ^ high;
  x = (x ^ (x >> 15)) * kSecondFactor;
  x ^= x >> 16;
  return x ^ (kTopBit << 16) ^ kTopBit;
}

/// The bits of a float as those of bfloat16.
[[gnu::always_inline]] inline std::uint32_t rounded_bits(std::uint32_t bits, std::uint32_t random) noexcept {
  constexpr std::uint32_t kInfinity = 0x7f800000;
  constexpr std::uint32_t kQuiet = 0x00400000;  // otherwise the upper half of NaN may be that of infinity
  const std::uint32_t magnitude = bits & 0x7fffffff;
  const std::uint32_t added = magnitude < kInfinity ? random : magnitude > kInfinity ? kQuiet & ~bits : 0;
  return (bits + added) >> 16;
}

// The loop takes two floats as one number, and counts in 32 bits: otherwise the compiler does not vectorise it well.
LOCKSTEP_VECTORIZED void round_bits(const std::uint32_t* __restrict from, std::uint16_t* __restrict to,
                                    std::uint32_t size, std::uint64_t key) noexcept {
  const auto high = static_cast<std::uint32_t>(key >> 32);
  auto position = static_cast<std::uint32_t>(key);
  if (size > 0 && position % 2 == 1) {
    *to++ = static_cast<std::uint16_t>(rounded_bits(*from++, bits_of_pair(position / 2, high) >> 16));
    ++position;
    --size;
  }
  const std::uint32_t first = position / 2;
  for (std::uint32_t i = 0; i < size / 2; ++i) {
    const std::uint32_t random = bits_of_pair(first + i, high);
    std::uint64_t two = 0;
    std::memcpy(&two, from + std::size_t{2} * i, sizeof two);
    const std::uint32_t rounded = rounded_bits(static_cast<std::uint32_t>(two), random & 0xffff) |
                                  rounded_bits(static_cast<std::uint32_t>(two >> 32), random >> 16) << 16;
    std::memcpy(to + std::size_t{2} * i, &rounded, sizeof rounded);
  }
  if (size % 2 == 1) {
    const std::uint32_t random = bits_of_pair(first + size / 2, high);
    to[size - 1] = static_cast<std::uint16_t>(rounded_bits(from[size - 1], random & 0xffff));
  }
}

}  // namespace

std::uint64_t rounding_key(std::uint64_t seed, std::initializer_list<std::uint64_t> call) noexcept {
  std::uint64_t key = splitmix(seed);
  for (const std::uint64_t part : call) {
    key = splitmix(key ^ part);
  }
  return key;
}

// The hash adds the lower half of a key to the position.
std::uint64_t key_from(std::uint64_t key, std::int64_t position) noexcept {
  constexpr auto kLow = static_cast<std::uint64_t>(kLow32);
  return (key & ~kLow) | ((key + static_cast<std::uint64_t>(position)) & kLow);
}

// The bits of a bfloat16 are the upper half of those of a float. Adding 16 random bits to the lower half carries into
// the upper one with a probability of lower half / 2^16.
void round_by_operations(const at::Tensor& rounded, const at::Tensor& values, std::uint64_t key) {
  constexpr std::int64_t kSlice = 1 << 22;  // limits the memory for the bits
  const at::Tensor from = values.view({-1});
  const at::Tensor to = rounded.view({-1});
  for (std::int64_t begin = 0; begin < from.numel(); begin += kSlice) {
    const std::int64_t end = std::min(begin + kSlice, from.numel());
    const at::Tensor part = from.slice(0, begin, end);
    // int16 + 2^15 is the number of 16 bits. No sum carries infinity on.
    const at::Tensor bits = random_bits(begin, end, key, values.device())
                                .to(at::kInt)
                                .add_(std::int64_t{kTopBit})
                                .add_(part.view(at::kInt));
    const at::Tensor result = to.slice(0, begin, end);
    result.view(at::kShort).copy_(bits.view(at::kShort).view({-1, 2}).select(1, 1));
    result.masked_fill_(part.isnan(), std::numeric_limits<float>::quiet_NaN());
  }
}

void round_into(const at::Tensor& rounded, const at::Tensor& values, std::uint64_t key) {
  const at::NoGradGuard no_grad;
  if (!values.is_cpu()) {
    round_by_operations(rounded, values, key);
    return;
  }
  constexpr std::int64_t kGrain = 1 << 15;  // elements; fewer are not worth another thread
  constexpr std::int64_t kMost = 1 << 30;   // of one call
  const auto* const from = values.view(at::kUInt32).const_data_ptr<std::uint32_t>();
  auto* const to = rounded.view(at::kUInt16).mutable_data_ptr<std::uint16_t>();
  at::parallel_for(0, values.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (; begin < end; begin += kMost) {
      round_bits(from + begin, to + begin, static_cast<std::uint32_t>(std::min(end - begin, kMost)),
                 key_from(key, begin));
    }
  });
}

at::Tensor stochastically_rounded(const at::Tensor& values, std::uint64_t key) {
  at::Tensor rounded = at::empty(values.sizes(), values.options().dtype(at::kBFloat16));
  round_into(rounded, values, key);
  return rounded;
}

}  // namespace lockstep
