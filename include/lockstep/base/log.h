// lockstep/base/log.h
//
// Log lines on standard error. The rank is a label of the calling thread, because ranks can be threads in tests.
// Torch-free.
#pragma once

#include <string_view>

namespace [[gnu::visibility("default")]] lockstep {

/// How important a line of the log is. `off` is only for set_log_level.
enum class LogLevel { debug, info, warning, error, off };

/// Labels the lines of this thread: "[rank3]: " if world_size > 1, else nothing. Other threads of a rank call it too.
void set_log_rank(int rank, int world_size) noexcept;
int log_rank() noexcept;        ///< this thread's rank, 0 by default
int log_world_size() noexcept;  ///< this thread's world size, 1 by default

/// Drops lines below `level`. The training reports and the progress bar have the level info. `off` drops everything
/// except the error with which run() ends. Default: info.
void set_log_level(LogLevel level) noexcept;
bool is_logged(LogLevel level) noexcept;

/// Writes one whole line to standard error: info and debug from the main rank only, warnings and errors from every
/// rank. Thread-safe. A status line on the terminal stays below the log line.
void log(LogLevel level, std::string_view message);

/// log() with the level in the name.
inline void log_info(std::string_view message) { log(LogLevel::info, message); }
inline void log_warning(std::string_view message) { log(LogLevel::warning, message); }

}  // namespace lockstep
