// step_times.csv: where the time of each rank goes.
#pragma once

#include <cstdint>

#include <lockstep/world/world.h>

#include "ipc/progress_record.h"
#include "trainer/output/run_files.h"

namespace lockstep {

class StepTimes {
 public:
  StepTimes(World& world, RunFiles& files);

  /// Counts from now on. `step`: completed steps.
  void begin(std::int64_t step);
  /// Collective. A row for each rank: milliseconds per step since the last call.
  void report(std::int64_t step);

 private:
  World& world_;
  RunFiles& files_;
  PhaseTimes since_{};
  std::int64_t step_ = 0;
};

}  // namespace lockstep
