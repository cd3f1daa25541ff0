// Output that a script reads, so that it must not end early without an error. Torch-free.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep {

/// Prints the text to standard output, behind what is in its buffer, and empties the buffer. Throws: IoError.
inline void write_output(std::string_view text = "") {
  if (std::fwrite(text.data(), 1, text.size(), stdout) < text.size() || std::fflush(stdout) != 0) {
    throw IoError(fmt::format("cannot write to standard output: {}", std::strerror(errno)), {}, errno);
  }
}

}  // namespace lockstep
