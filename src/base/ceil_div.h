// Division that rounds up, and shares of a number of things. Torch-free.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lockstep {

/// a / b, rounded up. a: 0 or more; b: 1 or more.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept { return a / b + (a % b != 0 ? 1 : 0); }

/// Consecutive shares of `all` things: the first ones get one more if the division has a remainder.
constexpr std::int64_t share_of(std::int64_t all, std::int64_t parts, std::int64_t index) noexcept {
  return all / parts + (index < all % parts ? 1 : 0);
}
constexpr std::int64_t share_begin(std::int64_t all, std::int64_t parts, std::int64_t index) noexcept {
  return index * (all / parts) + std::min(index, all % parts);
}

}  // namespace lockstep
