// lockstep/base/control.h
//
// Requests to stop or save a run. Torch-free.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

namespace [[gnu::visibility("default")]] lockstep {

/// Who asked for the stop; decides the exit code of run().
enum class StopKind : int {
  none = 0,
  program = 1,    ///< the program itself (a callback): the run counts as finished, exit 0
  terminate = 2,  ///< SIGTERM, SIGUSR1, SIGHUP, the end of a job, lockstep ctl: exit 75
  interrupt = 3,  ///< Ctrl-C: exit 130
};

/// A handle to the requests of one run; copies share them. The requests are local to this process: the trainer sends
/// them to all ranks, and all ranks act at the same later step. The end of a fit clears the program's own requests. A
/// stop from a signal, the end of a job or Ctrl-C stays and ends every later fit before its first step. A fit in a
/// callback of another one has requests of its own; a signal ends both. Fits that run at the same time in several
/// threads need a TrainControl each.
class TrainControl {
 public:
  TrainControl();

  /// Asks for a stop and a save. All ranks stop after the same step. Asked by a callback at a report, at the end of an
  /// epoch or in a validation: after the present step. Asked elsewhere, such as in step_end: after the next step, on
  /// GPUs with several ranks one step later. If a rank waits for data of a stream: before that step.
  /// Thread-safe. The first request counts, but any other kind replaces `program`.
  void request_stop(std::string_view reason, StopKind kind = StopKind::program);
  /// request_stop() at a time. Of several times of one kind the earliest counts, until the end of the fit, also in fits
  /// inside it. Thread-safe.
  void request_stop_at(std::chrono::steady_clock::time_point time, std::string_view reason,
                       StopKind kind = StopKind::program);
  /// Asks for a checkpoint after the next step (on GPUs with several ranks: after the one that follows it).
  /// Thread-safe.
  void request_checkpoint() noexcept;
  /// request_stop() for a signal handler: async-signal-safe. Returns false if no code has checked for requests yet; the
  /// request may then have no effect.
  bool request_stop_from_signal(StopKind kind) noexcept;

  StopKind stop_requested() const noexcept;  ///< by this process; the ranks have not agreed on it
  std::string stop_reason() const;           ///< "" without a request
  bool take_checkpoint_request() noexcept;   ///< returns the request and clears it

  /// The stop on which all ranks agreed at the end of a training; it decides the exit code of run(). A fit sets it. A
  /// hand-written loop sets it itself, to the same kind on every rank.
  void set_agreed(StopKind kind) noexcept;
  StopKind agreed() const noexcept;

 private:
  friend struct TrainControlAccess;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
