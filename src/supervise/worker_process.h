// One rank as a process: how it is created, signalled and reaped. Torch-free.
#pragma once

#include <string>
#include <vector>

#include <signal.h>
#include <sys/types.h>

#include <lockstep/base/variables.h>

#include "base/descriptor.h"
#include "ipc/channel.h"

namespace lockstep {

/// How a process ended: by a signal, or with a code.
struct ExitStatus {
  int code = 0;
  int signal = 0;  ///< 0: it exited by itself
};

/// SIGINT, SIGTERM, SIGUSR1 or SIGHUP.
bool is_stop_request(int signal) noexcept;

struct WorkerCommand {
  std::string program{};  ///< "": the program of own_program
  int own_program = -1;   ///< descriptor of the running program
  std::vector<std::string> argv{};
  Variables environment{};   ///< complete
  int progress = -1;         ///< descriptor of the ProgressBoard, which becomes kProgressFd
  int store_socket = -1;     ///< for rank 0, becomes kStoreFd
  std::vector<int> cores{};  ///< allowed cores; {}: those of this process
};

/// A child in its own process group that dies with this process. Its standard input is empty, its standard output and
/// error are pipes, and it has no other descriptor than kControlFd and, if given, kProgressFd
/// and kStoreFd.
class WorkerProcess {
 public:
  static constexpr int kControlFd = 3;
  static constexpr int kProgressFd = 4;
  static constexpr int kStoreFd = 5;

  /// Forks and executes; returns when the new program runs. Call it from the main thread, because the child dies with
  /// the thread that created it. Throws: LaunchError (not_found, cannot_run).
  explicit WorkerProcess(const WorkerCommand& command);
  WorkerProcess(WorkerProcess&& other) noexcept;
  WorkerProcess& operator=(WorkerProcess&&) = delete;
  ~WorkerProcess();  ///< kills the process group and reaps

  pid_t pid() const noexcept { return pid_; }
  bool is_running() const noexcept { return pidfd_.is_open(); }  ///< not reaped yet
  int pidfd() const noexcept { return pidfd_.get(); }            ///< readable when the process has ended
  Descriptor& output() noexcept { return output_; }
  Descriptor& errors() noexcept { return errors_; }
  const Channel& channel() const noexcept { return channel_; }

  void signal_group(int signal) const noexcept;
  void kill_group() const noexcept { signal_group(SIGKILL); }
  /// How it ended, before it is reaped. Blocks until the process has ended.
  ExitStatus status() const noexcept;
  /// Kills the remaining process group and reads the exit status. Blocks until the process has ended.
  ExitStatus reap() noexcept;
  /// Stops waiting for a process that does not end after SIGKILL.
  void abandon() noexcept { pidfd_.close(); }

 private:
  pid_t pid_ = -1;
  Descriptor pidfd_{};
  Descriptor output_{};
  Descriptor errors_{};
  Channel channel_;
};

}  // namespace lockstep
