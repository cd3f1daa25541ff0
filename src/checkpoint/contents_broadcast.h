// Sends the checkpoint contents of one rank to all ranks.
#pragma once

#include "checkpoint/contents_files.h"

namespace lockstep {

/// Collective. Every rank gets `saved` of rank `source`; the tensors are on the CPU.
void broadcast_contents(World& world, int source, StoredContents& saved);

}  // namespace lockstep
