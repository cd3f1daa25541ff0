// What a data set's own exception becomes.
#pragma once

#include <exception>
#include <string>
#include <typeinfo>

#include <lockstep/base/error.h>

#include "base/text.h"

namespace lockstep {

/// The user's code threw while it made these samples: "sample 7: std::runtime_error: not an image", without LibTorch's
/// stack trace, and the exit code of a failed training.
inline DataError sample_error(const std::string& samples, const std::exception& error) {
  return DataError(samples + ": " + type_name(typeid(error)) + ": " + std::string(without_frames(error.what())), {},
                   ExitCode::failed);
}

}  // namespace lockstep
