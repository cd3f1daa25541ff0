// `lockstep doctor`: checks whether training can work on this machine. Torch-free.
#pragma once

#include <span>
#include <string>

#include <lockstep/base/variables.h>

namespace lockstep {

/// Prints the findings and returns the exit code: 0 if nothing failed, else 1. Throws: ConfigError for bad usage.
int doctor_command(std::span<const std::string> args, const Variables& variables);

}  // namespace lockstep
