// SIGINT, SIGTERM, SIGUSR1, SIGHUP -> TrainControl, and no death by SIGPIPE or SIGXFSZ, for a process that is a rank.
// Also for the end of the process, and there for the launcher too. Torch-free.
#pragma once

#include <memory>

#include <lockstep/base/control.h>

namespace lockstep {

/// Effect of a signal before the first check of the TrainControl for requests: there is nothing to save yet.
enum class EarlyStop {
  end_process,    ///< ends it at once, with a line and ExitCode::interrupted or ExitCode::stopped
  die_of_signal,  ///< for our launcher, which prints the line
  wait,           ///< keeps the request until it is checked
};

/// Installs handlers while it exists, then restores the old ones. A second SIGINT more than a second after the first
/// ends the process at once (exit 130). A signal that was ignored stays ignored. A child that is forked without exec
/// ends by SIGTERM, and ignores the others. Only one per process.
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

/// Call it when the exit code is decided. From the return of main on, the process ends with that code whatever signal
/// asks it to stop: the destructors of LibTorch and of other libraries take a while. Until then, and for signals that
/// the program handles or ignores itself, nothing changes. A second signal, at least a second later, ends it.
void ignore_stops_at_exit();

}  // namespace lockstep
