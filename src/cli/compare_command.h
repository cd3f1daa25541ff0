// `lockstep compare`: where two runs part. Torch-free.
#pragma once

#include <span>
#include <string>

namespace lockstep {

/// `args`: what follows `lockstep compare`. Prints the answer; returns 0 (same) or 1 (different, or nothing in common).
/// Throws: ConfigError, DataError, IoError.
int compare_command(std::span<const std::string> args);

}  // namespace lockstep
