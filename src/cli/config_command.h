// `lockstep config`: prints, checks and migrates files of settings. Torch-free.
#pragma once

#include <span>
#include <string>

namespace lockstep {

/// `args`: the arguments after `lockstep config`. Returns the exit code. Throws: ConfigError with all problems of a
/// file, IoError.
int config_command(std::span<const std::string> args);

}  // namespace lockstep
