// Ends a process whose other threads may never finish. Torch-free.
#pragma once

#include <chrono>
#include <functional>

namespace lockstep {

/// Ends the process with `code` after `time` if it is still running, whatever its threads wait for. Uses SIGALRM. The
/// last call counts.
void end_process_within(std::chrono::seconds time, int code) noexcept;

/// Calls `say`, flushes the streams and ends the process with `code`, after at most deadlines::kGoodbye: a blocked
/// reader or a locked stream cannot delay it longer. Runs no destructors and no exit handlers, because those would join
/// threads that may be blocked in collectives.
[[noreturn]] void end_process(int code, const std::function<void()>& say = {}) noexcept;

}  // namespace lockstep
