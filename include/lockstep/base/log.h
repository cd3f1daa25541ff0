// lockstep/base/log.h
//
// Log lines on standard error. The rank is a label of the calling thread, so that ranks can be threads in tests.
// Torch-free.
#pragma once

#include <string_view>

namespace [[gnu::visibility("default")]] lockstep {

enum class LogLevel { debug, info, warning, error, off };

/// Labels this thread's lines: "[rank3]: " when world_size > 1, nothing otherwise. Threads of a rank set it again.
void set_log_rank(int rank, int world_size) noexcept;
int log_rank() noexcept;        ///< this thread's rank, 0 by default
int log_world_size() noexcept;  ///< this thread's world size, 1 by default

/// Lines below `level` are dropped, the reports of a training with info and its progress bar too; off drops everything
/// but the error that run() ends with. Default: info.
void set_log_level(LogLevel level) noexcept;
bool is_logged(LogLevel level) noexcept;

/// Writes one whole line to standard error. Info and debug come from the main rank only, warnings and errors from every
/// rank. Thread-safe. While a status line is on the terminal it is kept below the log line.
void log(LogLevel level, std::string_view message);

inline void log_info(std::string_view message) { log(LogLevel::info, message); }
inline void log_warning(std::string_view message) { log(LogLevel::warning, message); }
inline void log_error(std::string_view message) { log(LogLevel::error, message); }

}  // namespace lockstep
