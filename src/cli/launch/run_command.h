// `lockstep run`: the launcher for any program. Torch-free.
#pragma once

#include <string>

#include <lockstep/base/variables.h>
#include <lockstep/environment/hardware.h>
#include <lockstep/launch/launcher.h>

#include "cli/launch/run_flags.h"

namespace lockstep {

/// The file that a shell would run for `program`: the path itself if it contains a slash, else the first match in PATH.
/// Throws: LaunchError (not_found, cannot_run).
std::string find_program(const std::string& program, const Variables& variables);

/// Resolves the flags for this machine; does not look for the program. Throws: ConfigError.
LaunchRequest make_launch_request(const RunFlags& flags, const Hardware& hardware, const Variables& variables);

/// Returns the exit code; throws the exceptions of the launcher.
int run_command(const CommandLine& line, const Variables& variables);

}  // namespace lockstep
