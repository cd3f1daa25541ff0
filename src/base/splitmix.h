// splitmix64 (Steele, Lea, Flood 2014): a hash of 64 bits to 64 bits.
#pragma once

#include <cstdint>

namespace lockstep {

inline constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;

/// The finalizer (Stafford's variant 13): every bit of the result depends on every bit of the argument; 0 stays 0.
constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// The first output of the generator whose state is `x`.
constexpr std::uint64_t splitmix(std::uint64_t x) noexcept { return mix(x + kGolden); }

}  // namespace lockstep
