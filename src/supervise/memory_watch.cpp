#include "supervise/memory_watch.h"

#include <utility>

#include <fmt/format.h>

#include "base/text.h"

namespace lockstep {
namespace {

/// Parses the line "oom_kill 3".
std::optional<std::int64_t> kills_in(std::string_view events) {
  constexpr std::string_view kLabel = "oom_kill ";
  for (const std::string& line : split(events, '\n')) {
    if (line.starts_with(kLabel)) {
      return parse_int(std::string_view(line).substr(kLabel.size()));
    }
  }
  return std::nullopt;
}

}  // namespace

MemoryWatch::MemoryWatch(pid_t pid, ReadText read) : read_(std::move(read)) {
  folders_ = cgroup_folders(read_(fmt::format("/proc/{}/cgroup", pid)).value_or(""), "memory");
  kills_before_ = kills().value_or(0);
}

bool MemoryWatch::killed_since() const { return kills().value_or(0) > kills_before_; }

std::optional<std::int64_t> MemoryWatch::kills() const {
  for (const std::string& folder : folders_) {
    for (const char* name : {"/memory.events", "/memory.oom_control"}) {  // v2, v1
      if (const auto count = kills_in(read_(folder + name).value_or(""))) {
        return count;  // only of this group, because a parent also has other processes
      }
    }
  }
  return std::nullopt;
}

std::optional<std::int64_t> MemoryWatch::limit_bytes() const { return memory_limit(folders_, read_); }

}  // namespace lockstep
