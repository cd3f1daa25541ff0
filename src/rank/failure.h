// What ends a rank, in words for whoever watches it. Torch-free.
#pragma once

#include <exception>

#include "control/channel.h"

namespace lockstep {

/// The exception that is being handled, as the failure that its rank announces. To be called in a catch block or a
/// terminate handler.
Message current_failure();

/// While it lives, std::terminate (an exception that leaves a thread or a noexcept function) is announced before it
/// ends the process, with code 128 + SIGABRT; then the handler of before acts. One at a time in a process.
class TerminateScope {
 public:
  explicit TerminateScope(const Channel& channel);
  ~TerminateScope();
  TerminateScope(const TerminateScope&) = delete;
  TerminateScope& operator=(const TerminateScope&) = delete;

 private:
  std::terminate_handler before_;
};

}  // namespace lockstep
