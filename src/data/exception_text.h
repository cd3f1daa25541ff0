// data/exception_text.h
#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>

namespace lockstep {

/// What an exception says, without LibTorch's stack trace.
inline std::string exception_text(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error ? torch_error->what_without_backtrace() : error.what();
}

}  // namespace lockstep
