#include <atomic>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/assertion.h"
#include "base/log_label.h"
#include "base/temporary_value.h"
#include "base/terminal.h"

namespace lockstep {
namespace {

/// Has no destructor, so that objects that live longer than a thread's variables can log.
struct ThreadLog {
  int rank = 0;
  int world_size = 1;
  const std::shared_ptr<const LogHandler>* handler = nullptr;  // of the innermost scope
};

ThreadLog& this_thread() noexcept {
  thread_local ThreadLog log;
  return log;
}

std::atomic<LogLevel>& threshold() noexcept {
  static std::atomic<LogLevel> level{LogLevel::info};
  return level;
}

}  // namespace

void set_log_rank(int rank, int world_size) noexcept {
  this_thread().rank = rank;
  this_thread().world_size = world_size;
}

int log_rank() noexcept { return this_thread().rank; }
int log_world_size() noexcept { return this_thread().world_size; }
void set_log_level(LogLevel level) noexcept { threshold().store(level, std::memory_order_relaxed); }

bool is_logged(LogLevel level) noexcept {
  return level >= threshold().load(std::memory_order_relaxed) && level != LogLevel::off;
}

void log(LogLevel level, std::string_view message) {
  const ThreadLog& label = this_thread();
  const bool from_here = label.rank == 0 || level >= LogLevel::warning;
  if (!is_logged(level) || !from_here || give_to_log_handler(level, message)) {
    return;
  }
  std::string line;
  if (label.world_size > 1) {
    line += fmt::format("[rank{}]: ", label.rank);
  }
  if (level == LogLevel::warning) {
    line += "warning: ";
  } else if (level == LogLevel::error) {
    line += "error: ";
  }
  line += message;
  write_line(line);
}

bool give_to_log_handler(LogLevel level, std::string_view message) noexcept {
  const auto* handler = this_thread().handler;
  if (handler == nullptr || *handler == nullptr) {
    return false;
  }
  // What a handler logs itself does not come back to it.
  const TemporaryValue<decltype(handler)> none(this_thread().handler, nullptr);
  try {
    (**handler)(level, message);
    return true;
  } catch (...) {  // a log line must not end a training
    return false;
  }
}

LogScope::LogScope(LogHandler handler) : before_(this_thread().handler) {
  if (!handler) {
    throw ConfigError("LogScope: found no function, expected one that gets the lines of the log",
                      "pass a function, or make no LogScope: the lines then go to standard error");
  }
  handler_ = std::make_shared<const LogHandler>(std::move(handler));
  this_thread().handler = &handler_;
}

// Else a thread would keep a pointer to a handler that is gone.
LogScope::~LogScope() {
  LOCKSTEP_ASSERT(this_thread().handler == &handler_, "a LogScope ends before a newer one, or in another thread");
  this_thread().handler = before_;
}

LogLabel log_label() {
  const ThreadLog& here = this_thread();
  return {here.rank, here.world_size, here.handler != nullptr ? *here.handler : nullptr};
}

LogLabelScope::LogLabelScope(LogLabel label)
    : label_(std::move(label)),
      rank_before_(this_thread().rank),
      world_size_before_(this_thread().world_size),
      handler_before_(this_thread().handler) {
  this_thread() = {label_.rank, label_.world_size, &label_.handler};
}

LogLabelScope::~LogLabelScope() {
  LOCKSTEP_ASSERT(this_thread().handler == &label_.handler, "a LogLabelScope ends before a newer scope");
  this_thread() = {rank_before_, world_size_before_, handler_before_};
}

}  // namespace lockstep
