// `lockstep start`: asks for what a run needs, shows the command, and becomes it. Torch-free.
#pragma once

#include <span>
#include <string>

#include <lockstep/base/variables.h>

namespace lockstep {

/// `args`: the arguments after `lockstep start`. Does not return if the program starts; returns 0 for --print and
/// --help. Throws: ConfigError, LaunchError.
int start_command(std::span<const std::string> args, const Variables& variables);

}  // namespace lockstep
