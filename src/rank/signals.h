// SIGINT, SIGTERM, SIGUSR1, SIGHUP -> TrainControl, and no death by SIGPIPE or SIGXFSZ, for a process that is a rank.
// Torch-free.
#pragma once

#include <memory>

#include <lockstep/base/control.h>

namespace lockstep {

/// What a signal does before anybody asked the TrainControl for requests: nothing was trained then that could be saved.
enum class EarlyStop {
  end_process,    ///< at once, with a line and ExitCode::interrupted or ExitCode::stopped
  die_of_signal,  ///< for our launcher, which says the line
  wait,           ///< the request stays one
};

/// Installs handlers while it lives and restores the old ones. A second SIGINT more than a second after the first ends
/// the process at once (exit 130). A signal that was ignored stays ignored. One at a time in a process.
class SignalScope {
 public:
  explicit SignalScope(TrainControl control, EarlyStop early_stop = EarlyStop::end_process);
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
