// The integer hashes of data_order 1 (docs/data_order.md). Frozen.
#pragma once

#include <cstdint>

#include "base/splitmix.h"

namespace lockstep {

/// The upper half of the 128-bit product: a hash `a` in 0 .. b-1, without a division.
constexpr std::uint64_t high_product(std::uint64_t a, std::uint64_t b) noexcept {
  __extension__ using uint128 = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<uint128>(a) * b) >> 64);
}

/// The initial state of an epoch's random numbers; number i is mix(state + (i + 1) * kGolden).
constexpr std::uint64_t epoch_state(std::uint64_t seed, std::int64_t epoch) noexcept {
  return mix(splitmix(seed) + static_cast<std::uint64_t>(epoch));
}

constexpr std::uint64_t epoch_hash(std::uint64_t state, std::int64_t i) noexcept {
  return mix(state + (static_cast<std::uint64_t>(i) + 1) * kGolden);
}

}  // namespace lockstep
