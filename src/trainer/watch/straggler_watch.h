// Finds the rank for which the others wait.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <lockstep/world/world.h>

#include "base/event_log.h"
#include "ipc/progress_record.h"
#include "world/device_clock.h"

namespace lockstep {

/// Time that one rank needs for a step, without waiting for other ranks: seconds, means over the same steps.
struct StepCost {
  std::array<double, kPhaseCount> by_phase{};

  double step() const noexcept;
  double of(Phase phase) const noexcept { return by_phase[static_cast<std::size_t>(phase)]; }
};

struct Lag {
  int rank = 0;
  double factor = 1;  ///< the rank's step cost divided by that of the others
  StepCost mine{};
  StepCost others{};       ///< their medians
  double others_step = 0;  ///< median of their steps

  double longer() const noexcept { return mine.step() - others_step; }  ///< seconds
  Phase phase() const noexcept;                                         ///< with the largest part of the difference
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
/// collectives; their progress records count it. About every two seconds, with many ranks when 100 times
/// the time of an exchange has passed, and after at least 20 steps, all ranks exchange their means on the control
/// plane. The slowest step of that interval is ignored, so that a single delay does not make a rank a straggler.
/// Differences that are a small part of a step are ignored as well: ranks that share few cores wait during most of a
/// step, and which rank takes longest for the rest is random. On GPUs the steps that their clocks have measured are
/// compared: a GPU waits for a slow loader or callback, too.
class StragglerWatch {
 public:
  static constexpr double kFactor = 1.8;  ///< a rank is a straggler at this factor or above
  static constexpr double kEnded = 1.4;   ///< it remains one until its factor is below this
  static constexpr std::int64_t kSteps = 20;

  StragglerWatch(World& world, std::string host);

  void begin_step();
  /// step: number of completed steps. Collective if an exchange is due, after the same step on every rank. Returns news
  /// if a rank became or no longer is a straggler.
  std::optional<StragglerNews> end_step(std::int64_t step);

 private:
  using Clock = std::chrono::steady_clock;
  void add(const PhaseTimes& begin, const PhaseTimes& end);
  StepCost mean_without_slowest() const;
  /// Collective if there is news. wall: seconds per step, including waiting.
  std::optional<StragglerNews> judge(std::int64_t step, double wall, std::span<const StepCost> costs);
  void begin_window(std::int64_t steps);

  World& world_;
  ProgressRecord& record_;
  DeviceClock& clock_;
  std::string host_;
  PhaseTimes began_{};       // of this step
  PhaseTimes gpu_before_{};  // with its steps: when a cost was last added
  std::int64_t gpu_steps_before_ = 0;
  std::int64_t costs_ = 0;  // of this window
  StepCost sum_{};
  StepCost slowest_{};
  Clock::duration steps_time_{};  // including waiting: about equal on all ranks
  std::int64_t steps_ = 0;
  std::int64_t due_ = kSteps;
  double exchange_ = 0;  // seconds, the shortest one so far; it includes the wait for the others
  std::optional<int> named_{};
};

}  // namespace lockstep
