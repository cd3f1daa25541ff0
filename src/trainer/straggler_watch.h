// Which rank the others wait for.
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

/// What one rank needs for a step, waiting for other ranks not counted: seconds, means over the same steps.
struct StepCost {
  double step = 0;
  double data = 0;  ///< of it, until the batches were there
};

struct Lag {
  int rank = 0;
  double factor = 1;  ///< the rank's step cost over that of the others
  StepCost mine{};
  StepCost others{};  ///< their medians
};

/// How one rank compares to the others. costs: one entry per rank, two at least.
Lag lag_of(int rank, std::span<const StepCost> costs);
/// Of the rank with the largest step cost.
Lag largest_lag(std::span<const StepCost> costs);

struct StragglerNews {
  std::string text{};
  std::string event{};
  EventFields fields{};
};

/// Synchronous ranks all take the time of the slowest: what tells them apart is the time that they do not spend in
/// collectives. Every rank measures its own with three looks at a clock in a step; every two seconds or so, and after
/// 20 steps at least, all exchange their means on the control plane. The slowest step of that time is left out, so that
/// one hiccup makes no straggler. What costs the run little is let pass, too: ranks that share few cores wait for most
/// of a step, and who takes twice as long for the rest of it is chance. On a GPU the host's time counts: a slow loader
/// or callback is seen, a slow GPU is not.
class StragglerWatch {
 public:
  static constexpr double kFactor = 1.8;  ///< a straggler from here on
  static constexpr double kEnded = 1.4;   ///< and until it is below this
  static constexpr std::int64_t kSteps = 20;

  StragglerWatch(World& world, std::string host);

  void begin_step();
  void have_data();
  /// step: how many are done. Collective when an exchange is due: after the same step on every rank. Returns what there
  /// is to tell, if anything.
  std::optional<StragglerNews> end_step(std::int64_t step);

 private:
  using Clock = std::chrono::steady_clock;
  struct Taken {
    Clock::duration step{};
    Clock::duration data{};
  };
  Clock::duration own_time() const;
  StepCost mean_without_slowest() const;
  /// wall: seconds per step, waiting included.
  std::optional<StragglerNews> judge(std::int64_t step, double wall, std::span<const StepCost> costs,
                                     std::span<const std::string> hosts);
  void begin_window(std::int64_t steps);

  World& world_;
  ProgressRecord& record_;
  std::string host_;
  Clock::time_point began_{};        // this step
  Clock::duration waited_before_{};  // in all collectives before this step
  Taken now_{};
  Taken sum_{};
  Taken slowest_{};
  Clock::duration steps_time_{};  // waiting included: alike on all ranks
  std::int64_t steps_ = 0;
  std::int64_t due_ = kSteps;
  std::optional<int> named_{};
};

}  // namespace lockstep
