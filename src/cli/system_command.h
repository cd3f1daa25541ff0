// `lockstep system`: the facts of this machine, for an issue. Torch-free.
#pragma once

#include <span>
#include <string>

#include <lockstep/base/variables.h>

namespace lockstep {

/// Prints the facts and returns 0. Throws: ConfigError for bad usage.
int system_command(std::span<const std::string> args, const Variables& variables);

}  // namespace lockstep
