// When a run validates.
#pragma once

#include <cstdint>

#include <lockstep/config/train_config.h>
#include <lockstep/trainer/train_state.h>

#include "trainer/interval_timer.h"

namespace lockstep {

class ValidationTimes {
 public:
  explicit ValidationTimes(const ValidateConfig& config) : config_(config) {}

  /// `steps_per_epoch`: 0: not known. Throws: ConfigError if parts of an epoch are asked for and it is not known.
  void begin(std::int64_t steps_per_epoch);
  /// An epoch begins, perhaps with another number of steps. Throws as begin().
  void set_steps_per_epoch(std::int64_t steps);
  /// True once when validate.every_s has passed since the last validation. For the main rank.
  bool asks_by_time() { return timer_.asks(); }
  /// After a step. `step_of_epoch`: from 1.
  bool is_due(const TrainState& state, std::int64_t step_of_epoch, bool ends_epoch) const;
  void note_validation() { timer_.restart(); }

 private:
  ValidateConfig config_;
  std::int64_t steps_per_epoch_ = 0;
  IntervalTimer timer_{config_.every_s};
};

}  // namespace lockstep
