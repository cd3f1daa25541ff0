// lockstep/base/control.h
//
// Requests that end or save a run. Torch-free.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace lockstep {

/// Who asked for the stop; decides the exit code of run().
enum class StopKind : int {
  none = 0,
  program = 1,    ///< the program's own decision (a callback): the run counts as finished, exit 0
  terminate = 2,  ///< SIGTERM, SIGUSR1, a time limit: exit 75
  interrupt = 3,  ///< Ctrl-C: exit 130
};

/// A handle to one run's requests; copies share them. Requests are this process's wishes: the trainer carries them to
/// all ranks, which act at the same later step.
class TrainControl {
 public:
  TrainControl();

  /// Asks for a stop after the current step and a save. Thread-safe. The first reason is kept.
  void request_stop(std::string_view reason, StopKind kind = StopKind::program);
  /// Asks for a checkpoint at the next step boundary. Thread-safe.
  void request_checkpoint() noexcept;
  /// The same two for signal handlers: one atomic store, async-signal-safe.
  void request_stop_from_signal(StopKind kind) noexcept;

  StopKind stop_requested() const noexcept;  ///< by this process; not agreed
  std::string stop_reason() const;           ///< "" when nobody asked
  bool take_checkpoint_request() noexcept;   ///< returns the request and clears it

  /// What all ranks agreed on at the end of a fit (set by the trainer, read by run()).
  void set_agreed(StopKind kind) noexcept;
  StopKind agreed() const noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
