// Checks that the ranks of a machine may open enough files. Torch-free.
#pragma once

#include <cstdint>

namespace lockstep {

/// Maximum number of descriptors for the supervisor of so many ranks, or for one of `world_size` ranks: pipes and
/// handles, sockets of a full mesh, and a reserve for the program.
std::int64_t needed_descriptors(int local_world_size, int world_size);

/// Raises the soft limit of open files for this process and its workers, at least to 65536 if the hard limit allows it.
/// Throws: ConfigError with both numbers if that is not enough.
void raise_descriptor_limit(int local_world_size, int world_size);

}  // namespace lockstep
