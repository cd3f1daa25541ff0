// The last words of a process that crashes, and the stacks of one that hangs. Torch-free.
#pragma once

#include <array>
#include <chrono>
#include <memory>

#include <signal.h>

#include "ipc/progress_record.h"

namespace lockstep {

/// While it lives, SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT write what happened, where the run was and the stack of
/// the thread, and then end the process as they would have (its exit status stays the signal, core files work). SIGUSR2
/// writes the stacks of all threads and the process goes on. A signal that has a handler already, or is ignored, is
/// left alone. A stack overflow is reported in the thread that made this. One at a time in a process.
class CrashHandler {
 public:
  /// `record` may be nullptr: then no place is written.
  CrashHandler(int rank, const ProgressRecord* record);
  ~CrashHandler();
  CrashHandler(const CrashHandler&) = delete;
  CrashHandler& operator=(const CrashHandler&) = delete;

 private:
  static constexpr std::array kSignals{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGUSR2};

  std::unique_ptr<std::byte[]> stack_{};
  stack_t stack_before_{};
  std::array<struct sigaction, kSignals.size()> before_{};
};

/// What SIGUSR2 does, for the threads other than this one. Nothing without a CrashHandler.
void dump_stacks() noexcept;
/// Until they are written, or for so long, counted in naps: a thread that blocks SIGUSR2 writes none.
void wait_for_stacks(std::chrono::milliseconds longest) noexcept;

}  // namespace lockstep
