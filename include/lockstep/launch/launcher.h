// lockstep/launch/launcher.h
//
// Starts and watches the ranks of one machine. The supervisor is never a rank and never loads CUDA. Torch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/base/variables.h>

namespace lockstep {

struct LaunchRequest {
  std::vector<std::string> argv{};  ///< argv[0] for show; the program is opened from /proc/self/exe
  std::string program{};            ///< "": this program; else a path, for a launcher of other programs
  int world_size = 1;
  int threads_per_rank = 1;               ///< OMP_NUM_THREADS, unless the user set it
  std::chrono::milliseconds grace{5000};  ///< after a failure, until the rest is killed
  std::chrono::milliseconds stall_warning{
      30000};  ///< without progress, until ranks that stand still are named; 0: never
  std::chrono::milliseconds stall_deadline{300000};  ///< without progress, until the run is ended (exit 124); 0: never
  Variables environment{};                           ///< what the workers inherit, before RANK and its like are set
  bool terminal_status = false;                      ///< standard error can redraw: show the main rank's status line
};

struct LaunchReport {
  int exit_code = 0;       ///< 0, or the first failed rank's; 130/75 when stopped on request
  int failed_rank = -1;    ///< -1: none
  std::string failure{};   ///< "rank 1 (pid 71) died of signal 9 (Killed)"
  std::int64_t step = -1;  ///< the furthest step that a rank had done; -1: not known
};

/// Starts one worker process per rank (own process group, dies with this process), prefixes its output with "[rank3]:
/// ", forwards SIGINT and SIGTERM to all ranks once, kills at once on a second SIGINT, and returns when all are gone.
/// After the first failure the rest end within grace + 5 s. The failure is the last thing printed. Blocks. Main thread
/// only. Throws: LaunchError when a worker cannot be started.
LaunchReport launch_workers(const LaunchRequest& request);

}  // namespace lockstep
