// Signals of the supervisor, read as data. Torch-free.
#pragma once

#include <optional>

#include <signal.h>

#include "base/descriptor.h"

namespace lockstep {

/// While it lives, SIGINT, SIGTERM, SIGUSR1, SIGUSR2 and SIGHUP wait in a descriptor instead of interrupting this
/// thread. Those that were ignored stay ignored. Children stay collectable even if the parent of this process ignored
/// SIGCHLD. A file that reaches the limit of its size (SIGXFSZ) is an error of the write alone.
class SignalInbox {
 public:
  SignalInbox();  ///< Throws: LaunchError
  ~SignalInbox();
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  int fd() const noexcept { return fd_.get(); }
  std::optional<int> take() noexcept;  ///< the next signal that arrived

 private:
  Descriptor fd_{};
  sigset_t mask_before_{};
  struct sigaction child_before_ {};
  struct sigaction file_size_before_ {};
};

}  // namespace lockstep
