// Division that rounds up. Torch-free.
#pragma once

#include <cstdint>

namespace lockstep {

/// a / b, rounded up. a: 0 or more; b: 1 or more.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace lockstep
