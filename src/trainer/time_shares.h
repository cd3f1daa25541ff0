// Where the time of a fit goes, by this rank's clock. Torch-free.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/duration.h"
#include "base/event_log.h"

namespace lockstep {

/// In seconds.
struct TimeShares {
  double total = 0;
  double data = 0;  ///< waiting for batches
  double validation = 0;
  double saves = 0;

  EventFields fields() const;
  /// What to do if much of a long run was not training. `workers`: data.workers.
  std::optional<std::string> advice(int workers) const;
};

/// Adds its lifetime to a number of seconds.
class Timed {
 public:
  explicit Timed(double& seconds) : seconds_(seconds) {}
  ~Timed() { seconds_ += seconds_since(start_); }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace lockstep
