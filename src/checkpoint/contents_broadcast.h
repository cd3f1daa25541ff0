// Sends the checkpoint contents of one rank to all ranks.
#pragma once

#include <functional>

#include "checkpoint/contents_files.h"

namespace lockstep {

/// Collective. Every rank gets `saved` of rank `source`; the tensors are on the CPU.
void broadcast_contents(World& world, int source, StoredContents& saved);

/// Collective. Runs `read` on rank `source` and returns its result on every rank, with the rank's own `per_rank`.
CheckpointContents load_on(World& world, int source, const std::function<StoredContents()>& read);

}  // namespace lockstep
