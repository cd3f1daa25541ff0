// Assertions that are always enabled, for bugs in lockstep, and for wrong uses that only a destructor can notice.
#pragma once

namespace lockstep {

/// Receives the text of a failed assertion in place of standard error; nullptr: none. Returns the previous listener.
using AssertionListener = void (*)(const char* text) noexcept;
AssertionListener set_assertion_listener(AssertionListener listener) noexcept;

[[noreturn]] void assertion_failed(const char* condition, const char* why, const char* file, int line) noexcept;

}  // namespace lockstep

/// Prints condition, reason and location, and ends the process with ExitCode::internal.
#define LOCKSTEP_ASSERT(condition, why) \
  ((condition) ? static_cast<void>(0) : ::lockstep::assertion_failed(#condition, why, __FILE__, __LINE__))
