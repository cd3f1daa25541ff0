#include <atomic>
#include <string>

#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/terminal.h"

namespace lockstep {
namespace {

struct RankLabel {
  int rank = 0;
  int world_size = 1;
};

RankLabel& this_thread() noexcept {
  thread_local RankLabel label;
  return label;
}

std::atomic<LogLevel>& threshold() noexcept {
  static std::atomic<LogLevel> level{LogLevel::info};
  return level;
}

}  // namespace

void set_log_rank(int rank, int world_size) noexcept { this_thread() = {rank, world_size}; }
int log_rank() noexcept { return this_thread().rank; }
int log_world_size() noexcept { return this_thread().world_size; }
void set_log_level(LogLevel level) noexcept { threshold().store(level, std::memory_order_relaxed); }

bool is_logged(LogLevel level) noexcept {
  return level >= threshold().load(std::memory_order_relaxed) && level != LogLevel::off;
}

void log(LogLevel level, std::string_view message) {
  const RankLabel& label = this_thread();
  const bool from_here = label.rank == 0 || level >= LogLevel::warning;
  if (!is_logged(level) || !from_here) {
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

}  // namespace lockstep
