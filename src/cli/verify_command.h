// `lockstep verify`: reads every byte of a run's checkpoints. Torch-free.
#pragma once

#include <span>
#include <string>

namespace lockstep {

/// `args`: the arguments after `lockstep verify`. Prints a line per checkpoint, or one JSON object; returns 0, or 65 if
/// a checkpoint is damaged or none is valid. Throws: ConfigError, IoError.
int verify_command(std::span<const std::string> args);

}  // namespace lockstep
