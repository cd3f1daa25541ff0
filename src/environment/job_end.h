// The end of the batch job of this process. Torch-free.
#pragma once

#include <chrono>
#include <optional>

#include <lockstep/base/variables.h>

namespace lockstep {

/// From SLURM_JOB_END_TIME (Slurm 23.02 and later; seconds since 1970), on the monotonic clock: later changes of the
/// wall clock do not move it. nullopt: not known. Throws: ConfigError if it is not a number.
std::optional<std::chrono::steady_clock::time_point> job_end(const Variables& variables);

}  // namespace lockstep
