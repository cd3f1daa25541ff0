// Ends everything that the workers of a launch started, whatever it did to get away. Torch-free.
#pragma once

#include <set>
#include <string>

#include <sys/types.h>

#include "launch/descriptor.h"

namespace lockstep {

/// A worker dies with its supervisor, and its process group with the worker. What left the group (a daemon of a data
/// loader, say) is found here, see docs/decisions/0015-no-orphans.md: by the launch's mark in its environment, or
/// because it was orphaned and so became this process's child. A small watcher process does the same if this process is
/// killed. One at a time in a process; main thread only.
class Descendants {
 public:
  /// `launch_id`: what kLaunchMark contains, long and random.
  /// Throws: LaunchError.
  explicit Descendants(std::string launch_id);
  ~Descendants();  ///< ends all; the watcher goes too
  Descendants(const Descendants&) = delete;
  Descendants& operator=(const Descendants&) = delete;

  void add_worker(pid_t pid) { own_.insert(pid); }  ///< its owner waits for it
  void reap() noexcept;                             ///< collects orphans that ended, so that no zombies pile up
  void end() noexcept;                              ///< kills whatever is left. To be called when the workers are gone.

 private:
  int kill_orphans() noexcept;  // how many there were

  std::string launch_id_;
  std::set<pid_t> own_{};  // children that are not orphans of a worker
  int subreaper_before_ = 0;
  Descriptor watcher_pipe_{};  // its end tells the watcher that this process is gone
  pid_t watcher_ = -1;
};

}  // namespace lockstep
