// Time that this process could use: one that was suspended and goes on has missed nobody. Pure, torch-free.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

#include "failure/deadlines.h"

namespace lockstep {

/// Whoever reads it at least every kLook gets the time of the steady clock, less the gaps in which nobody read it.
class AwakeClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Time read(Time clock) noexcept {
    constexpr Time::duration kLongestGap = 2 * deadlines::kLook;
    awake_ += std::clamp(clock - last_.value_or(clock), Time::duration(0), kLongestGap);
    last_ = clock;
    return awake_;
  }

 private:
  std::optional<Time> last_{};
  Time awake_{};
};

}  // namespace lockstep
