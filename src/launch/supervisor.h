// Watches running workers until all are gone. Torch-free.
#pragma once

#include <chrono>
#include <vector>

#include <lockstep/launch/launcher.h>

#include "control/progress_record.h"
#include "launch/signal_inbox.h"
#include "launch/stall_watch.h"
#include "launch/worker_process.h"

namespace lockstep {

struct SupervisorOptions {
  std::chrono::milliseconds grace{5000};
  bool terminal_status = false;
  StallLimits stall{};
};

/// workers[r] is rank r, progress[r] its record. Prints their output, forwards signals, ends the rest after a failure,
/// and says last what failed.
LaunchReport supervise(std::vector<WorkerProcess> workers, ProgressBoard progress, SignalInbox& signals,
                       const SupervisorOptions& options);

}  // namespace lockstep
