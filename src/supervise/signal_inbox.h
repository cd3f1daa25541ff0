// Signals to the supervisor, read from a descriptor. Torch-free.
#pragma once

#include <optional>

#include <signal.h>

#include "base/descriptor.h"

namespace lockstep {

/// While it exists, SIGINT, SIGTERM, SIGUSR1, SIGUSR2 and SIGHUP are queued in a descriptor and do not interrupt this
/// thread. Signals that were ignored stay ignored. Children can be reaped even if the parent of this process ignored
/// SIGCHLD. If a file reaches the size limit (SIGXFSZ), only the write fails.
class SignalInbox {
 public:
  SignalInbox();  ///< Throws: LaunchError
  ~SignalInbox();
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  int fd() const noexcept { return fd_.get(); }
  std::optional<int> take() noexcept;  ///< the next queued signal

 private:
  Descriptor fd_{};
  sigset_t mask_before_{};
  struct sigaction child_before_ {};
  struct sigaction file_size_before_ {};
};

}  // namespace lockstep
