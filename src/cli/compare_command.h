// `lockstep compare`: finds the first difference between two runs. Torch-free.
#pragma once

#include <span>
#include <string>

namespace lockstep {

/// `args`: the arguments after `lockstep compare`. Prints the result; returns 0 (same) or 1 (different, or no step in
/// common).
/// Throws: ConfigError, DataError, IoError.
int compare_command(std::span<const std::string> args);

}  // namespace lockstep
