// Durations as numbers of seconds. Torch-free.
#pragma once

#include <chrono>
#include <cstdint>

namespace lockstep {

/// Of a field of the configuration.
constexpr std::chrono::milliseconds to_milliseconds(double seconds) noexcept {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

constexpr std::int64_t whole_seconds(std::chrono::steady_clock::duration time) noexcept {
  return std::chrono::duration_cast<std::chrono::seconds>(time).count();
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double seconds_until(std::chrono::steady_clock::time_point end) { return -seconds_since(end); }

}  // namespace lockstep
