// `lockstep top`: a live view of a run in the terminal. Torch-free.
#pragma once

#include <span>
#include <string>

#include <lockstep/base/variables.h>

namespace lockstep {

/// `args`: the arguments after `lockstep top`. Draws until q or Ctrl-C; without a terminal it prints one picture.
/// Returns 0, or 128 + N after the signal N. Throws: ConfigError, IoError.
int top_command(std::span<const std::string> args, const Variables& variables);

}  // namespace lockstep
