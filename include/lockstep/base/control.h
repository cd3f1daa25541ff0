// lockstep/base/control.h
//
// Requests that end or save a run. Torch-free.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace [[gnu::visibility("default")]] lockstep {

/// Who asked for the stop; decides the exit code of run().
enum class StopKind : int {
  none = 0,
  program = 1,    ///< the program's own decision (a callback): the run counts as finished, exit 0
  terminate = 2,  ///< SIGTERM, SIGUSR1, a time limit: exit 75
  interrupt = 3,  ///< Ctrl-C: exit 130
};

/// A handle to one run's requests; copies share them. Requests are this process's own: the trainer carries them to all
/// ranks, which act at the same later step. A fit that is over takes the program's requests with it; a stop that a
/// signal, a time limit or Ctrl-C asked for stays, and ends every later fit before its first step.
class TrainControl {
 public:
  TrainControl();

  /// Asks for a stop after the current step and a save. Thread-safe. The first request is kept, but one of the kind
  /// `program` gives way to the others.
  void request_stop(std::string_view reason, StopKind kind = StopKind::program);
  /// Asks for a checkpoint at the next step boundary. Thread-safe.
  void request_checkpoint() noexcept;
  /// request_stop() for a signal handler: async-signal-safe. False: nobody has asked for requests yet, so that nobody
  /// may ever act on this one.
  bool request_stop_from_signal(StopKind kind) noexcept;

  StopKind stop_requested() const noexcept;  ///< by this process; not agreed
  std::string stop_reason() const;           ///< "" when nobody asked
  bool take_checkpoint_request() noexcept;   ///< returns the request and clears it

  /// A fit is over: what the program asked for and nobody acted on is not for the next one. Called by the trainer.
  void end_fit() noexcept;

  /// What all ranks agreed on at the end of a fit (set by the trainer, read by run()).
  void set_agreed(StopKind kind) noexcept;
  StopKind agreed() const noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
