// `lockstep ctl`: commands for a running training.
#pragma once

#include <span>
#include <string>

namespace lockstep {

/// Returns the exit code. Throws: ConfigError (usage), CheckpointError (no run in the directory), IoError.
int ctl_command(std::span<const std::string> args);

}  // namespace lockstep
