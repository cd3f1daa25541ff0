// The mask of signals of a thread. Torch-free.
#pragma once

#include <signal.h>

namespace lockstep {

/// While it exists, the thread takes no signals. What it starts inherits that: a thread whose signals belong to the
/// program's own threads, or a child that must not run the handlers of this process.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace lockstep
