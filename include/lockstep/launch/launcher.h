// lockstep/launch/launcher.h
//
// Starts, watches and restarts the ranks of one machine. The supervisor is never a rank and never loads CUDA.
// Torch-free.
#pragma once

#include <chrono>
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

/// What launch_workers() starts, and how it watches it.
struct LaunchRequest {
  std::vector<std::string> argv{};        ///< argv[0] is only shown; the program is opened from /proc/self/exe
  std::string program{};                  ///< "": this program; otherwise the path of another program
  bool any_program = false;               ///< the program may not use lockstep: its exit code is trusted
  std::vector<int> ranks_per_node{1};     ///< one number per machine, the same on all machines
  int node = 0;                           ///< index of this machine
  std::string master_addr = "127.0.0.1";  ///< address of machine 0, which listens on it
  int master_port = 0;                    ///< 0: any free port; required for several machines
  std::string run_id{};                   ///< "": random; several machines need the same one
  int threads_per_rank = 1;               ///< OMP_NUM_THREADS, unless the user has set it
  int max_restarts = 0;                   ///< maximum without progress between them; only on one machine
  std::chrono::milliseconds grace{5000};  ///< from a failure until the other ranks are killed
  std::chrono::milliseconds stall_warning{
      30000};  ///< time without progress until the stalled ranks are reported; 0: never
  std::chrono::milliseconds stall_deadline{
      300000};  ///< time without progress in a step, or while all ranks wait, that ends the run (exit 124); 0: never
  std::chrono::milliseconds rendezvous_deadline{0};  ///< the same limit for the rendezvous; 0: never
  Variables environment{};                ///< base of the workers' environment; RANK and similar variables are added
  bool terminal_status = false;           ///< standard error is a terminal: show the main rank's status line
  std::filesystem::path log_dir{};        ///< for <log_dir>/<run id>/attempt_<n>/rank_<r>.log
  std::vector<OutputRoute> routes{};      ///< by local rank; {}: all output to the terminal
  std::vector<std::vector<int>> cores{};  ///< by local rank, the allowed cores; {}: those of this process
  /// The directory in which events.jsonl gets a line per failure and restart, if it exists. `launch`: LaunchName::id of
  /// the ranks. {}: none.
  std::function<std::filesystem::path(const std::string& launch)> event_directory{};
  /// Locks that directory; returns nullptr while another launch holds it and writes the log. {}: no lock needed.
  std::function<std::unique_ptr<FileLock>(const std::filesystem::path& directory)> event_lock{};
  /// After a failure, what is left in event_directory, as a line before its cause; "": nothing to say.
  std::function<std::string(const std::filesystem::path& directory)> after_failure{};
};

/// Starts one worker process per rank of this machine (own process group, dies with this process), prefixes its output
/// with "[rank3]: ", forwards SIGINT, SIGTERM, SIGUSR1 and SIGHUP (as SIGTERM) to all ranks, each once, kills at once
/// on a SIGINT more than 1 s after the first one, and returns when all have ended. On SIGUSR2 the ranks print their
/// stacks. After the first failure the other ranks end within grace + 5 s. Then all ranks are restarted if
/// restarts are left and the failure is not deterministic (see RestartPolicy). All descendants of the workers are
/// killed, including detached ones, even if this process is killed. The failure is printed last. Blocks. Main thread
/// only.
/// Throws: LaunchError when a worker cannot be started, ConfigError when this machine cannot hold the ranks.
LaunchReport launch_workers(const LaunchRequest& request);

}  // namespace lockstep
