// What a data set's own exception becomes.
#pragma once

#include <exception>
#include <string>
#include <typeinfo>

#include <c10/util/Exception.h>

#include <lockstep/base/error.h>

#include "base/text.h"

namespace lockstep {

/// The user's code threw while it made these samples: "sample 7: std::runtime_error: not an image", without LibTorch's
/// stack trace, and the exit code of a failed training.
inline DataError sample_error(const std::string& samples, const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  return DataError(samples + ": " + type_name(typeid(error)) + ": " + text, {}, ExitCode::failed);
}

}  // namespace lockstep
