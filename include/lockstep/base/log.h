// lockstep/base/log.h
//
// Log lines, on standard error or where the program wants them. The rank is a label of the calling thread, because
// ranks can be threads in tests. Torch-free.
#pragma once

#include <functional>
#include <memory>
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

/// Writes one whole line to standard error, or gives it to the LogScope of this thread: info and debug from the main
/// rank only, warnings and errors from every rank. Thread-safe. A status line on the terminal stays below the log line.
void log(LogLevel level, std::string_view message);

/// log() with the level in the name.
inline void log_info(std::string_view message) { log(LogLevel::info, message); }
inline void log_warning(std::string_view message) { log(LogLevel::warning, message); }

/// Gets lines of the log, for the log of the program. `message` is without a rank (see log_rank()), a word for the
/// level and a line end; a few messages have several lines. Called by the thread that logs, so by several threads at
/// once: it must not wait for the thread that trains. What it logs through lockstep itself goes to standard error, and
/// so does a line for which it throws.
using LogHandler = std::function<void(LogLevel level, std::string_view message)>;

/// While it exists, `handler` gets what this thread logs, and what the threads log that the library starts from it,
/// instead of standard error: also the reports of a Trainer that prints them (with a progress bar, those that stay as
/// lines). Make it before the Session and the loaders: threads that start later have the handler as long as they run.
/// What it captures must live as long as the Session, loaders and Trainers that are made while it exists. Each thread
/// of the program needs its own; an inner one replaces the outer one. End it in the thread that made it, the newest
/// first. set_log_level() applies before. It does not get a progress bar, what run() itself prints, such as the plan
/// and its last error, warnings of the thread that watches the other ranks, and what a hook logs in a backward on a
/// GPU: LibTorch calls it in a thread of its own. Throws: ConfigError (no function).
class [[nodiscard]] LogScope {
 public:
  explicit LogScope(LogHandler handler);
  ~LogScope();
  LogScope(const LogScope&) = delete;
  LogScope& operator=(const LogScope&) = delete;

 private:
  std::shared_ptr<const LogHandler> handler_;
  const std::shared_ptr<const LogHandler>* before_;  // of the scope around it; nullptr: none
};

}  // namespace lockstep
