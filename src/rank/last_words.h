// What ends a rank, in words for whoever watches it. Torch-free.
#pragma once

#include <exception>
#include <functional>

#include <lockstep/base/error.h>

#include "failure/failure.h"
#include "ipc/progress_record.h"

namespace lockstep {

/// The exception that is being handled, as the failure of this rank, of whatever number. To be called in a catch block
/// or a terminate handler.
Failure current_failure();

/// While it lives, what ends the process without an exception that anybody could catch is told before it does, in the
/// thread that ends it: std::terminate (an exception that leaves a thread or a noexcept function) with code 128 +
/// SIGABRT, then the handler of before acts; when Gloo's own thread ends it so because a connection broke, with
/// ExitCode::peer_lost, or because the ranks call different collectives, with ExitCode::disagree and what `record` says
/// about this one's; a failed assertion of the library with ExitCode::internal. One at a time in a process.
class LastWords {
 public:
  using Tell = std::function<void(const Failure&)>;
  LastWords(const ProgressRecord& record, Tell tell);
  ~LastWords();
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;

 private:
  Tell tell_;
  std::terminate_handler terminate_before_;
  detail::AssertionListener assertion_before_;
};

}  // namespace lockstep
