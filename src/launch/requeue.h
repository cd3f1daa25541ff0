// Asks Slurm to requeue a stopped job. Torch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <lockstep/base/variables.h>

namespace lockstep {

/// {"scontrol", "requeue", "4711"}; a task of an array is "4711_3". Empty outside a Slurm job. Throws: ConfigError if
/// Slurm's variables are not numbers.
std::vector<std::string> requeue_command(const Variables& variables);

/// Whether a job that was stopped shall be queued again: it runs (it got a signal), or its time is over. False after a
/// plain `scancel`, and if it is queued already. `job`: what `scontrol show job` prints.
bool may_requeue(std::string_view job);

/// Asks Slurm for the state of the job, and runs the command if it may be requeued; false: it may not. Without a shell,
/// with these variables. Throws: LaunchError with the exit code of scontrol.
bool run_requeue(const std::vector<std::string>& command, const Variables& variables);

/// Queues the job of these variables again after a requested stop. Logs why it is not queued: that is no failure of the
/// run, whose state is saved.
void queue_again(const Variables& variables);

}  // namespace lockstep
