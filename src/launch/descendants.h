// Ends all descendants of the workers of a launch, including detached ones. Torch-free.
#pragma once

#include <set>
#include <string>
#include <vector>

#include <sys/types.h>
#include <unistd.h>

#include <lockstep/base/variables.h>

#include "base/descriptor.h"

namespace lockstep {

/// By what the environment of a process tells to which launch it belongs.
struct LaunchMark {
  std::string id{};                 ///< part of own_variables::kLaunchMark, long and random
  std::vector<std::string> jobs{};  ///< such as "SLURM_JOB_ID=7": a process of another batch job does not belong to it
};

/// A worker dies with its supervisor, and its process group with the worker. This finds processes that left the group,
/// such as a daemon of a data loader (see docs/decisions/0016-no-orphans.md): by the mark of the launch in their
/// environment, or because they were orphaned and became children of this process. A small watcher process does the
/// same if this process is killed. Only one per process. On another thread than the main one it adopts no orphans,
/// because it cannot tell them from children of the program; those with the mark end nevertheless.
class Descendants {
 public:
  /// `launch_id`: value of own_variables::kLaunchMark. `environment`: that of the workers. Throws: LaunchError.
  Descendants(std::string launch_id, const Variables& environment);
  ~Descendants();  ///< ends all descendants and the watcher, also if someone has stopped or killed it
  Descendants(const Descendants&) = delete;
  Descendants& operator=(const Descendants&) = delete;

  void add_worker(pid_t pid) { own_.insert(pid); }  ///< the owner of the worker waits for it
  void reap() noexcept;                             ///< reaps ended orphans, so that zombies do not accumulate
  /// Kills all remaining descendants; call it after the workers have ended. Those with own_variables::kMayFinish have
  /// deadlines::kMayFinish before it.
  void end() noexcept;

 private:
  int kill_orphans() noexcept;  // returns their number

  LaunchMark launch_;
  std::set<pid_t> own_{};  // children that are not orphans of workers
  const bool adopts_orphans_ = gettid() == getpid();
  int subreaper_before_ = 0;
  Descriptor watcher_pipe_{};  // when it closes, the watcher knows that this process was killed
  pid_t watcher_ = -1;
};

}  // namespace lockstep
