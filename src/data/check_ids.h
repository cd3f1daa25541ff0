#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep {

/// Throws DataError: "subset: found sample id 7, expected 0 to 4".
inline void check_ids(std::string_view what, std::span<const std::int64_t> ids, std::int64_t size) {
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= size) {
      throw DataError(fmt::format("{}: found sample id {}, expected 0 to {}", what, id, size - 1));
    }
  }
}

}  // namespace lockstep
