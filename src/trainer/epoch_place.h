// The place of a run in its epoch.
#pragma once

#include <cstdint>

#include <lockstep/trainer/train_state.h>

namespace lockstep {

/// After the last step.
struct EpochPlace {
  std::int64_t number = 0;           ///< of its epoch, from 1; 0: before the first step
  std::int64_t steps = 0;            ///< of the epoch so far
  bool validation_is_due = false;    ///< a validation after this step has not been done to its end
  bool validation_is_extra = false;  ///< by time or on request alone: nothing is decided by it

  bool begins_epoch(const TrainState& state) const noexcept { return number != state.epoch + 1; }
};

}  // namespace lockstep
