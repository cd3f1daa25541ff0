// What exit() does in a rank that others wait for. Torch-free.
#pragma once

namespace lockstep {

/// While it exists, exit() flushes the streams and ends this process with its code, without the destructors of static
/// objects: beside threads that still run they crash now and then, and the crash would hide the exit. Exit handlers
/// that the program adds meanwhile are called. Only one per process.
class ExitGuard {
 public:
  /// `alone`: this rank is the only one, and no supervisor sees how it ends. Then exit(0) is an error with a message
  /// and another code, and other codes end the process as without a guard.
  explicit ExitGuard(bool alone);
  ~ExitGuard();
  ExitGuard(const ExitGuard&) = delete;
  ExitGuard& operator=(const ExitGuard&) = delete;
};

}  // namespace lockstep
