// The time of day. Torch-free. For what is written for people; durations are measured with steady_clock.
#pragma once

namespace lockstep {

double unix_time();  ///< seconds since 1970-01-01 UTC

}  // namespace lockstep
