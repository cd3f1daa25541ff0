// Watches running workers until all have ended. Torch-free.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include <lockstep/supervise/launch_report.h>

#include "ipc/progress_record.h"
#include "supervise/rank_output.h"
#include "supervise/signal_inbox.h"
#include "supervise/stall_watch.h"
#include "supervise/terminal_queue.h"
#include "supervise/worker_process.h"

namespace lockstep {

struct SupervisorOptions {
  std::chrono::milliseconds grace{5000};
  bool terminal_status = false;
  StallLimits stall{};
  int first_rank = 0;                 ///< of this machine
  int world_size = 1;                 ///< on all machines
  bool any_program = false;           ///< the exit code of a program that announces nothing is trusted
  std::function<void()> each_turn{};  ///< called after every event
  /// Called when all workers have ended, before the failure is printed.
  std::function<void(const LaunchReport&)> ended{};
  /// After a failure: what is left of the training, a line before the cause; "": none.
  std::function<std::string()> what_is_left{};
};

/// workers[i] is rank first_rank + i, progress[i] its record, destinations[i] where its output goes. Prints their
/// output, forwards signals, ends the other ranks after a failure, and prints the failure last. Does not wait until the
/// terminal has shown what was printed.
LaunchReport supervise(std::vector<WorkerProcess> workers, std::vector<RankDestination> destinations,
                       ProgressBoard progress, SignalInbox& signals, TerminalQueue& terminal,
                       const SupervisorOptions& options);

}  // namespace lockstep
