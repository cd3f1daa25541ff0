// One rank's Snapshot on every rank.
#pragma once

#include "checkpoint/snapshot_files.h"

namespace lockstep {

/// Collective. `saved` of rank `source` becomes everybody's; the tensors are on the CPU.
void broadcast_snapshot(World& world, int source, SavedSnapshot& saved);

}  // namespace lockstep
