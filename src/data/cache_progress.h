// How far a cache has come.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"

namespace lockstep {

/// A line every ten seconds while samples are loaded, which can take hours.
class CacheProgress {
 public:
  using Clock = std::chrono::steady_clock;

  CacheProgress(std::string what, std::int64_t samples, Clock::time_point start)
      : what_(std::move(what)), samples_(samples), start_(start), next_(start + kInterval) {}

  /// After `done` samples, at least one. nullopt: the last line is too recent.
  std::optional<std::string> line(std::int64_t done, Clock::time_point now) {
    if (now < next_) {
      return std::nullopt;
    }
    next_ = now + kInterval;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double left = seconds / static_cast<double>(done) * static_cast<double>(samples_ - done);
    return fmt::format("{}: {} of {} samples, about {} left", what_, done, samples_, human_duration(left));
  }

 private:
  static constexpr std::chrono::seconds kInterval{10};

  std::string what_;
  std::int64_t samples_;
  Clock::time_point start_;
  Clock::time_point next_;
};

}  // namespace lockstep
