// Ranks in a message. Torch-free.
#pragma once

#include <span>
#include <string>

#include <fmt/format.h>

#include "base/text.h"

namespace lockstep {

/// "rank 3", "ranks 0-2".
inline std::string ranks_text(std::span<const int> sorted) {
  return fmt::format("rank{} {}", sorted.size() == 1 ? "" : "s", format_ranges(sorted));
}

}  // namespace lockstep
