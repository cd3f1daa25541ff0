// The integer hashes of data_order 1 (docs/data.md). Frozen.
#pragma once

#include <cstdint>

namespace lockstep {

inline constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;

/// The finaliser of splitmix64 (Stafford's variant 13).
constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// The upper half of the 128-bit product: a hash `a` in 0 .. b-1, without a division.
constexpr std::uint64_t high_product(std::uint64_t a, std::uint64_t b) noexcept {
  __extension__ using uint128 = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<uint128>(a) * b) >> 64);
}

/// Where an epoch's random numbers begin; number i is mix(state + (i + 1) * kGolden).
constexpr std::uint64_t epoch_state(std::uint64_t seed, std::int64_t epoch) noexcept {
  return mix(mix(seed + kGolden) + static_cast<std::uint64_t>(epoch));
}

constexpr std::uint64_t epoch_hash(std::uint64_t state, std::int64_t i) noexcept {
  return mix(state + (static_cast<std::uint64_t>(i) + 1) * kGolden);
}

}  // namespace lockstep
