// `lockstep completion`: scripts that complete commands and flags in a shell. Torch-free.
#pragma once

#include <span>
#include <string>

namespace lockstep {

/// `args`: the arguments after `lockstep completion`. Prints the script; returns 0. Throws: ConfigError.
int completion_command(std::span<const std::string> args);

}  // namespace lockstep
