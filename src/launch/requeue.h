// Asks Slurm to requeue a stopped job. Torch-free.
#pragma once

#include <string>
#include <vector>

#include <lockstep/base/variables.h>

namespace lockstep {

/// {"scontrol", "requeue", "4711"}; a task of an array is "4711_3". Empty outside a Slurm job. Throws: ConfigError if
/// Slurm's variables are not numbers.
std::vector<std::string> requeue_command(const Variables& variables);

/// Runs the command with these variables, without a shell. Throws: LaunchError with the exit code of scontrol.
void run_requeue(const std::vector<std::string>& command, const Variables& variables);

}  // namespace lockstep
