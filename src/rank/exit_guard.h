// What exit() does in a rank that others wait for. Torch-free.
#pragma once

namespace lockstep {

/// While it exists, exit() flushes the streams and ends this process with its code, without the destructors of static
/// objects: beside threads that still run they crash now and then, and the crash would hide the exit. Exit handlers
/// that the program adds meanwhile are called. Only one per process.
class ExitGuard {
 public:
  ExitGuard();
  ~ExitGuard();
  ExitGuard(const ExitGuard&) = delete;
  ExitGuard& operator=(const ExitGuard&) = delete;
};

}  // namespace lockstep
