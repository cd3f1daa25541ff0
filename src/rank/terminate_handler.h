// Reports why a rank ends to the process that watches it. Torch-free.
#pragma once

#include <exception>
#include <functional>

#include <lockstep/base/error.h>

#include "base/assertion.h"
#include "failure/failure.h"
#include "ipc/progress_record.h"

namespace lockstep {

/// The current exception as a failure, without a rank number. Call it in a catch block or a terminate handler.
Failure current_failure();

/// While it exists, it reports events that end the process without an exception that could be caught, in the thread
/// that ends it. std::terminate (an exception that leaves a thread or a noexcept function): code 128 + SIGABRT, then
/// the previous handler runs. If Gloo's own thread terminates because a connection broke: ExitCode::peer_lost; because
/// the ranks call different collectives: ExitCode::disagree and the collective in `record`. A failed assertion of the
/// library: ExitCode::internal. Only one per process.
class TerminateHandler {
 public:
  using Report = std::function<void(const Failure&)>;
  TerminateHandler(const ProgressRecord& record, Report report);
  ~TerminateHandler();
  TerminateHandler(const TerminateHandler&) = delete;
  TerminateHandler& operator=(const TerminateHandler&) = delete;
  /// The work is done and announced. From now on a connection that breaks in Gloo's own thread is the end of another
  /// rank, not a failure, and the process ends with `code`.
  void finished(int code) const noexcept;

 private:
  Report report_;
  std::terminate_handler terminate_before_;
  AssertionListener assertion_before_;
};

}  // namespace lockstep
