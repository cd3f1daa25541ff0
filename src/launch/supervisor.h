// Watches running workers until all are gone. Torch-free.
#pragma once

#include <chrono>
#include <vector>

#include <lockstep/launch/launcher.h>

#include "launch/signal_inbox.h"
#include "launch/worker_process.h"

namespace lockstep {

struct SupervisorOptions {
  std::chrono::milliseconds grace{5000};
  bool terminal_status = false;
};

/// workers[r] is rank r. Prints their output, forwards signals, ends the rest after a failure, and says last what
/// failed.
LaunchReport supervise(std::vector<WorkerProcess> workers, SignalInbox& signals, const SupervisorOptions& options);

}  // namespace lockstep
