// What an exception says, whatever its type. Torch-free.
#pragma once

#include <exception>
#include <string>

namespace lockstep {

/// "std::runtime_error: not an image", without LibTorch's stack trace; an Error has no type in its text. The cause of
/// an exception that was thrown with std::throw_with_nested follows: "...: caused by std::bad_alloc: ...".
std::string exception_text(const std::exception& error);

/// "caused by std::bad_alloc: ..."; "" without a cause.
std::string cause_text(const std::exception& error);

/// exception_text() of the exception that is being handled. Of one that is no std::exception: "std::string: no image"
/// if it is a text, else "unknown exception of type int".
std::string current_exception_text();

}  // namespace lockstep
