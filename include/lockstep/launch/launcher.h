// lockstep/launch/launcher.h
//
// Starts and watches the ranks of one machine, and starts them again. The supervisor is never a rank and never loads
// CUDA. Torch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/base/file_system.h>
#include <lockstep/base/variables.h>
#include <lockstep/supervise/launch_report.h>
#include <lockstep/supervise/output_route.h>

namespace [[gnu::visibility("default")]] lockstep {

struct LaunchRequest {
  std::vector<std::string> argv{};        ///< argv[0] for show; the program is opened from /proc/self/exe
  std::string program{};                  ///< "": this program; else a path, for a launcher of other programs
  bool any_program = false;               ///< it may know nothing of lockstep: an exit code is believed as it is
  std::vector<int> ranks_per_node{1};     ///< one number per machine, the same on all machines
  int node = 0;                           ///< which of them this one is
  std::string master_addr = "127.0.0.1";  ///< of machine 0, which binds it
  int master_port = 0;                    ///< 0: any free one; several machines need a number
  std::string run_id{};                   ///< "": a random one; several machines need a common one
  int threads_per_rank = 1;               ///< OMP_NUM_THREADS, unless the user set it
  int max_restarts = 0;                   ///< without progress between them; one machine only
  std::chrono::milliseconds grace{5000};  ///< after a failure, until the rest is killed
  std::chrono::milliseconds stall_warning{
      30000};  ///< without progress, until the ranks that stand still are named; 0: never
  std::chrono::milliseconds stall_deadline{
      300000};  ///< without progress inside a step, until the run is ended (exit 124); 0: never
  std::chrono::milliseconds rendezvous_deadline{0};  ///< the same for ranks that look for each other; 0: never
  Variables environment{};                           ///< what the workers inherit, before RANK and its like are set
  bool terminal_status = false;                      ///< standard error can redraw: show the main rank's status line
  std::filesystem::path log_dir{};                   ///< for <log_dir>/<run id>/attempt_<n>/rank_<r>.log
  std::vector<OutputRoute> routes{};                 ///< by local rank; {}: everything on the terminal
  std::vector<std::vector<int>> cores{};             ///< by local rank, the cores it may use; {}: this process's
  std::filesystem::path event_log{};  ///< gets a line per failure and restart, if its folder exists; "": none
  /// Of the folder of `event_log`: nullptr while another launch works there, whose log it is then. {}: it needs no
  /// lock.
  std::function<std::unique_ptr<FileLock>()> event_lock{};
};

/// Starts one worker process per rank of this machine (own process group, dies with this process), prefixes its output
/// with "[rank3]: ", forwards SIGINT and SIGTERM to all ranks once, kills at once on a second SIGINT, and returns when
/// all are gone. After the first failure the rest end within grace + 5 s; then all are started again, if restarts are
/// left and the failure may be another one next time (see RestartPolicy). What the workers started goes with them,
/// whatever it did to get away, also when this process is killed. The failure is the last thing printed. Blocks. Main
/// thread only.
/// Throws: LaunchError when a worker cannot be started, ConfigError when this machine cannot hold the ranks.
LaunchReport launch_workers(const LaunchRequest& request);

}  // namespace lockstep
