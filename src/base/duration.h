// Durations from configuration fields, which are numbers of seconds. Torch-free.
#pragma once

#include <chrono>
#include <cstdint>

namespace lockstep {

constexpr std::chrono::milliseconds to_milliseconds(double seconds) noexcept {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

}  // namespace lockstep
