// How much of a launch that had restarts was worth its time. Pure. Torch-free.
#pragma once

#include <cstdint>
#include <string>

#include <lockstep/launch/launcher.h>

namespace lockstep {

/// Productive is the time of steps that did not have to be done again: not start-up, back-off, and repeated steps.
class Goodput {
 public:
  /// One attempt, in their order; `training_s` and the steps of the report count.
  void add(const LaunchReport& attempt);

  int restarts() const noexcept { return attempts_ > 0 ? attempts_ - 1 : 0; }
  std::int64_t steps_repeated() const noexcept { return repeated_; }
  double productive_s() const noexcept { return productive_s_; }
  /// "2 restarts, 40 steps repeated, 83.1 % of the time was productive"; without steps only the restarts.
  std::string text(double wall_s) const;

 private:
  int attempts_ = 0;
  std::int64_t furthest_ = -1;
  std::int64_t repeated_ = 0;
  double productive_s_ = 0;
};

}  // namespace lockstep
