// Productive part of the time of a launch with restarts. Pure. Torch-free.
#pragma once

#include <cstdint>
#include <string>

#include <lockstep/launch/launcher.h>

namespace lockstep {

/// Productive time is the time of steps that were not repeated later, without start-up and waits before restarts.
class Goodput {
 public:
  /// Adds an attempt, in order; uses `training_s` and the steps of the report.
  void add(const LaunchReport& attempt);

  int restarts() const noexcept { return attempts_ > 0 ? attempts_ - 1 : 0; }
  std::int64_t steps_repeated() const noexcept { return repeated_; }
  double productive_s() const noexcept { return productive_s_; }
  /// "2 restarts, 40 steps repeated, 83.1 % of the time was productive"; only the restarts if no steps are known.
  std::string text(double wall_s) const;

 private:
  int attempts_ = 0;
  std::int64_t furthest_ = -1;  // steps of all fits
  std::int64_t repeated_ = 0;
  double productive_s_ = 0;
};

}  // namespace lockstep
