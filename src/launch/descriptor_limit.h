// Whether a machine's ranks may open enough files. Torch-free.
#pragma once

#include <cstdint>

namespace lockstep {

/// What the supervisor of so many ranks, or one of `world_size` ranks, may need at most: pipes and handles, sockets of
/// a full mesh, and some of the program's own.
std::int64_t needed_descriptors(int local_world_size, int world_size);

/// Raises the soft limit of open files for this process and its workers as far as the hard limit and reason allow.
/// Throws: ConfigError with both numbers when that is not enough.
void raise_descriptor_limit(int local_world_size, int world_size);

}  // namespace lockstep
