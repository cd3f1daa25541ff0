// The launch that `lockstep plan` and `start` plan for. Torch-free.
#pragma once

#include <string>

#include <lockstep/environment/identity.h>

namespace lockstep {

/// A launch of one process on each of `nodes` equal nodes, which starts the ranks of its node; this is node 0.
Identity one_process_per_node(int nodes, std::string launcher);

}  // namespace lockstep
