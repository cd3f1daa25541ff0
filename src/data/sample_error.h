// Converts the exception of a data set.
#pragma once

#include <exception>
#include <string>
#include <typeinfo>

#include <lockstep/base/error.h>

#include "base/text.h"

namespace lockstep {

/// For an exception of the user's code while it built these samples: "sample 7: std::runtime_error: not an image",
/// without LibTorch's stack trace, and with the exit code of a failed training.
inline DataError sample_error(const std::string& samples, const std::exception& error) {
  return DataError(samples + ": " + type_name(typeid(error)) + ": " + std::string(without_frames(error.what())), {},
                   ExitCode::failed);
}

}  // namespace lockstep
