// Errors about samples.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text.h"

namespace lockstep {

/// For an exception of the user's code while it built these samples: "sample 7: std::runtime_error: not an image",
/// without LibTorch's stack trace, and with the exit code of a failed training.
inline DataError sample_error(const std::string& samples, const std::exception& error) {
  return DataError(samples + ": " + type_name(typeid(error)) + ": " + std::string(without_frames(error.what())), {},
                   ExitCode::failed);
}

/// Throws DataError: "subset: found sample id 7, expected 0 to 4".
inline void check_ids(std::string_view what, std::span<const std::int64_t> ids, std::int64_t size) {
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= size) {
      throw DataError(fmt::format("{}: found sample id {}, expected 0 to {}", what, id, size - 1));
    }
  }
}

}  // namespace lockstep
