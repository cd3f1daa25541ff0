// Which failure is the cause of the others. Pure: failures and times in, a cause out. Torch-free.
#pragma once

#include <chrono>
#include <optional>

#include "failure/deadlines.h"
#include "failure/failure.h"

namespace lockstep {

/// The first failure that is no consequence is the cause. A consequence waits for its cause a while, and is the cause
/// itself if none follows.
class Verdict {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void add(Failure failure, Time now);
  /// To be called after the failures that are known were added, and when due. `nothing_follows`: no cause can come any
  /// more.
  void settle(Time now, bool nothing_follows);
  std::optional<Time> due() const;  ///< when a consequence is blamed
  const std::optional<Failure>& cause() const noexcept { return cause_; }

 private:
  std::optional<Failure> cause_{};
  std::optional<Failure> consequence_{};
  Time due_{};
};

}  // namespace lockstep
