// Detects kills by the kernel's OOM killer. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "environment/cpu_topology.h"

namespace lockstep {

/// Watches the memory control group (v1 or v2) to which a process belongs when this is created.
class MemoryWatch {
 public:
  explicit MemoryWatch(pid_t pid, ReadText read = read_text_file);

  /// Whether the OOM killer has killed a process of the group since this was created.
  bool killed_since() const;
  /// The lowest limit of the group and its parents; nullopt: no limit.
  std::optional<std::int64_t> limit_bytes() const;

 private:
  std::optional<std::int64_t> kills() const;

  ReadText read_;
  std::vector<std::string> folders_{};  // of the group, then of its parents
  std::int64_t kills_before_ = 0;
};

}  // namespace lockstep
