// Reports of a process that crashes, and stacks of one that hangs. Torch-free.
#pragma once

#include <array>
#include <chrono>
#include <memory>

#include <signal.h>

#include "ipc/progress_record.h"

namespace lockstep {

/// While it exists, SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT write the signal, the position of the run and the stack
/// of the thread, and then end the process with their default action (same exit status, core files work). SIGUSR2
/// writes the stacks of all threads, and the process continues. A signal that already has a handler or is ignored is
/// not changed. A stack overflow is reported only in the thread that created this object. Only one per process.
class CrashHandler {
 public:
  /// `record` may be nullptr: then the position of the run is not written.
  CrashHandler(int rank, const ProgressRecord* record);
  ~CrashHandler();
  CrashHandler(const CrashHandler&) = delete;
  CrashHandler& operator=(const CrashHandler&) = delete;

 private:
  static void drop_requests() noexcept;

  static constexpr std::array kSignals{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGUSR2};

  std::unique_ptr<std::byte[]> stack_{};
  stack_t stack_before_{};
  std::array<struct sigaction, kSignals.size()> before_{};
};

/// Like SIGUSR2, for all threads except this one. Does nothing without a CrashHandler.
void dump_stacks() noexcept;
/// Waits until the stacks are written or the time is over, because a thread that blocks SIGUSR2 writes none.
void wait_for_stacks(std::chrono::milliseconds longest) noexcept;

}  // namespace lockstep
