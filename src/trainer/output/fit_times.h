// Where the time of one fit goes on this rank.
#pragma once

#include <cstdint>

#include "ipc/progress_record.h"
#include "trainer/output/run_end.h"
#include "world/device_clock.h"

namespace lockstep {

/// The clocks of a rank measure all its fits together, so this keeps what they showed when it was made.
class FitTimes {
 public:
  FitTimes(ProgressRecord& record, DeviceClock& clock);

  /// CUDA graphs are off, and nothing else prevents them.
  void note_possible_graphs() noexcept { could_have_graphs_ = true; }
  /// Call it only between collectives. `one_reader`: see BatchSource.
  RunTimes until_now(bool one_reader);

 private:
  ProgressRecord& record_;
  DeviceClock& clock_;
  const PhaseTimes host_;
  const PhaseTimes gpu_;
  const std::int64_t gpu_steps_;
  const std::int64_t close_steps_;
  bool could_have_graphs_ = false;
};

}  // namespace lockstep
