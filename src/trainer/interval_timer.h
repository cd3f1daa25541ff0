// For what a run does again when a time has passed, such as validate.every_s. One rank asks for it; all do it after the
// same step, in which they agree.
#pragma once

#include <chrono>

#include "base/duration.h"

namespace lockstep {

class IntervalTimer {
 public:
  /// `seconds`: 0: never.
  explicit IntervalTimer(double seconds) : seconds_(seconds) {}

  /// True once when the time has passed since restart().
  bool asks() {
    if (seconds_ == 0 || asked_ || seconds_since(began_) < seconds_) {
      return false;
    }
    asked_ = true;
    return true;
  }
  /// It was done.
  void restart() {
    began_ = std::chrono::steady_clock::now();
    asked_ = false;
  }

 private:
  double seconds_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  bool asked_ = false;
};

}  // namespace lockstep
