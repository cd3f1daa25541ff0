// SIGINT, SIGTERM, SIGUSR1 -> TrainControl, and no death by SIGPIPE, for a process that is a rank. Torch-free.
#pragma once

#include <memory>

#include <lockstep/base/control.h>

namespace lockstep {

/// Installs handlers while it lives and restores the old ones. A second SIGINT more than a second after the first ends
/// the process at once (exit 130). A signal that was ignored stays ignored. One at a time in a process.
class SignalScope {
 public:
  explicit SignalScope(TrainControl control);
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
