// The way out of a process whose other threads may wait for ever. Torch-free.
#pragma once

#include <chrono>
#include <functional>

namespace lockstep {

/// Ends the process with `code` if it still lives after `time`, whatever its threads wait for. Uses SIGALRM. The last
/// call counts.
void end_process_within(std::chrono::seconds time, int code) noexcept;

/// Calls `say`, flushes the streams and ends the process with `code`, deadlines::kGoodbye later at the latest: a reader
/// that does not read, or a thread that holds a stream, delays it no longer. No destructor and no exit handler runs:
/// those would join threads that may sit in collectives.
[[noreturn]] void end_process(int code, const std::function<void()>& say = {}) noexcept;

}  // namespace lockstep
