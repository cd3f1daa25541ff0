// Finds the rank for which the others wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <lockstep/world/world.h>

#include "base/event_log.h"
#include "ipc/progress_record.h"

namespace lockstep {

/// Time that one rank needs for a step, without waiting for other ranks: seconds, means over the same steps.
struct StepCost {
  double step = 0;
  double data = 0;  ///< part of it: waiting for batches
};

struct Lag {
  int rank = 0;
  double factor = 1;  ///< the rank's step cost divided by that of the others
  StepCost mine{};
  StepCost others{};  ///< their medians
};

/// Compares one rank to the others. costs: one entry per rank, at least two.
Lag lag_of(int rank, std::span<const StepCost> costs);
/// Comparison for the rank with the highest step cost.
Lag largest_lag(std::span<const StepCost> costs);

struct StragglerNews {
  std::string text{};
  std::string event{};
  EventFields fields{};
};

/// Synchronous ranks all take as long as the slowest one. They differ in the time that they do not spend in
/// collectives. Every rank reads a clock three times per step to measure this time. About every two seconds, and after
/// at least 20 steps, all ranks exchange their means on the control plane. The slowest step of that interval is
/// ignored, so that a single delay does not make a rank a straggler. Differences that are a small part of a step are
/// ignored as well: ranks that share few cores wait during most of a step, and which rank takes longest for the rest is
/// random. On a GPU only the host's time is measured: a slow loader or callback is detected, a slow GPU is not.
class StragglerWatch {
 public:
  static constexpr double kFactor = 1.8;  ///< a rank is a straggler at this factor or above
  static constexpr double kEnded = 1.4;   ///< it remains one until its factor is below this
  static constexpr std::int64_t kSteps = 20;

  StragglerWatch(World& world, std::string host);

  void begin_step();
  void have_data();
  /// step: number of completed steps. Collective if an exchange is due, after the same step on every rank. Returns news
  /// if a rank became or no longer is a straggler.
  std::optional<StragglerNews> end_step(std::int64_t step);

 private:
  using Clock = std::chrono::steady_clock;
  struct Taken {
    Clock::duration step{};
    Clock::duration data{};
  };
  Clock::duration own_time() const;
  StepCost mean_without_slowest() const;
  /// wall: seconds per step, including waiting.
  std::optional<StragglerNews> judge(std::int64_t step, double wall, std::span<const StepCost> costs,
                                     std::span<const std::string> hosts);
  void begin_window(std::int64_t steps);

  World& world_;
  ProgressRecord& record_;
  std::string host_;
  Clock::time_point began_{};        // of this step
  Clock::duration waited_before_{};  // time in all collectives before this step
  Taken now_{};
  Taken sum_{};
  Taken slowest_{};
  Clock::duration steps_time_{};  // including waiting: about equal on all ranks
  std::int64_t steps_ = 0;
  std::int64_t due_ = kSteps;
  std::optional<int> named_{};
};

}  // namespace lockstep
