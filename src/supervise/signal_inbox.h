// Signals to the supervisor, read from a descriptor. Torch-free.
#pragma once

#include <array>
#include <optional>

#include <signal.h>
#include <sys/types.h>

#include "base/descriptor.h"

namespace lockstep {

/// While it exists, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP and SIGTSTP are queued in a descriptor and do not
/// interrupt this thread, whichever thread of the program they reach. Only this thread may take them. Signals that were
/// ignored stay ignored. Children can be reaped even if the parent of this process ignored SIGCHLD. If a file reaches
/// the size limit (SIGXFSZ), or the reader of a pipe has ended (SIGPIPE), only the write fails.
class SignalInbox {
 public:
  SignalInbox();  ///< Throws: LaunchError
  ~SignalInbox();
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  int fd() const noexcept { return fd_.get(); }
  std::optional<int> take() noexcept;  ///< the next queued signal
  /// The next one that requests a stop. For a process that has no ranks of its own at the moment: SIGUSR2, which asks
  /// ranks for their stacks, is dropped, and SIGTSTP suspends this process alone.
  std::optional<int> take_stop() noexcept;
  /// As SIGTSTP without a handler: returns when the process goes on, and at once where no shell could let it go on.
  static void suspend() noexcept;

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGTSTP};

  Descriptor fd_{};
  std::array<struct sigaction, kSignals.size()> before_{};
  pid_t reader_before_ = 0;
  sigset_t mask_before_{};
  struct sigaction child_before_ {};
  struct sigaction file_size_before_ {};
  struct sigaction pipe_before_ {};
};

}  // namespace lockstep
