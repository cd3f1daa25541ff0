// `lockstep run`: the launcher for any program. Torch-free.
#pragma once

#include <optional>
#include <span>
#include <string>

#include <lockstep/base/variables.h>
#include <lockstep/environment/hardware.h>
#include <lockstep/launch/launcher.h>

#include "cli/run_flags.h"

namespace lockstep {

/// The file that a shell would run for `program`: itself if it has a slash, else the first match in PATH.
/// Throws: LaunchError (not_found, cannot_run).
std::string find_program(const std::string& program, const Variables& variables);

/// What the flags mean on this machine; the program is not looked for. Throws: ConfigError.
LaunchRequest make_launch_request(const RunFlags& flags, const Hardware& hardware, const Variables& variables);

/// `args`: what follows `lockstep run`. Returns the exit code; throws what the launcher throws.
int run_command(std::span<const std::string> args, const Variables& variables);

}  // namespace lockstep
