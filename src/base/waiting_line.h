// A log line that says from time to time for what this process waits. Torch-free.
#pragma once

#include <chrono>

#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/duration.h"

namespace lockstep {

/// The time begins with the object.
class WaitingLine {
 public:
  WaitingLine(std::chrono::milliseconds limit, LogLevel level) : limit_(limit), level_(level) {}

  /// Every 10 seconds: "waiting for rank 2 (10 of 300 s)". `text` returns the text without the times.
  template <class Text>
  void say(const Text& text) {
    if (const auto now = Clock::now(); now >= say_at_) {
      say_at_ += kSayEvery;
      log(level_, fmt::format("{} ({} of {} s)", text(), whole_seconds(now - start_), whole_seconds(limit_)));
    }
  }
  bool is_over() const { return Clock::now() - start_ >= limit_; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kSayEvery{10};

  std::chrono::milliseconds limit_;
  LogLevel level_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point say_at_ = start_ + kSayEvery;
};

}  // namespace lockstep
