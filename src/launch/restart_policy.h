// Whether a failed launch is tried again, and when. Pure: reports in, decisions out. Torch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <lockstep/launch/launcher.h>

namespace lockstep {

struct RestartDecision {
  bool restart = false;
  std::chrono::seconds wait{0};
  std::string reason{};  ///< why not, where restarts were asked for; "": nothing failed
};

/// At most `max_restarts` in a row without progress: a step beyond all before refills the budget and shortens the
/// waits, which grow 1, 2, 4 ... 30 s. Never again: a stop on request; settings, data or ranks that do not fit; and the
/// same failure twice in a row at the same step.
class RestartPolicy {
 public:
  explicit RestartPolicy(int max_restarts) : max_(max_restarts), left_(max_restarts) {}

  RestartDecision after(const LaunchReport& report);
  int left() const noexcept { return left_; }

 private:
  struct Signature {
    std::string text{};
    std::int64_t step = -1;
    bool operator==(const Signature&) const = default;
  };

  int max_;
  int left_;
  int fruitless_ = 0;  // restarts since the last progress
  std::int64_t furthest_ = -1;
  std::optional<Signature> last_{};
};

}  // namespace lockstep
