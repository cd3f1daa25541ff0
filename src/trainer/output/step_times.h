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
  /// Collective. A row for each rank: the steps since its last row, and the milliseconds per step, on a GPU those of
  /// the GPU. A rank whose GPU has measured no step since then has no row.
  void report(std::int64_t step);

 private:
  struct Moment {
    PhaseTimes times{};
    std::int64_t step = 0;
    std::int64_t measured = 0;  // steps
  };
  Moment now(std::int64_t step);

  World& world_;
  RunFiles& files_;
  Moment since_{};
};

}  // namespace lockstep
