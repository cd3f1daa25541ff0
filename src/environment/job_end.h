// When the batch job that this process is part of will be ended. Torch-free.
#pragma once

#include <chrono>
#include <optional>

#include <lockstep/base/variables.h>

namespace lockstep {

/// From SLURM_JOB_END_TIME (Slurm 23.02 and later; seconds since 1970), on the clock that deadlines use: later steps of
/// the wall clock do not move it. nullopt: not known. Throws: ConfigError when it is no number.
std::optional<std::chrono::steady_clock::time_point> job_end(const Variables& variables);

}  // namespace lockstep
