// Asks Slurm to start a stopped job again. Torch-free.
#pragma once

#include <string>
#include <vector>

#include <lockstep/base/variables.h>

namespace lockstep {

/// {"scontrol", "requeue", "4711"}; an array's task is "4711_3". Empty outside a Slurm job. Throws: ConfigError when
/// Slurm's variables do not hold numbers.
std::vector<std::string> requeue_command(const Variables& variables);

/// Runs it with these variables, without a shell. Throws: LaunchError with the exit code of scontrol.
void run_requeue(const std::vector<std::string>& command, const Variables& variables);

}  // namespace lockstep
