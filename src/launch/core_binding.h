// Chooses the cores of each rank, if binding is requested. Torch-free.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include <lockstep/environment/hardware.h>

#include "environment/cpu_topology.h"

namespace lockstep {

/// "0-3,8" -> {0, 1, 2, 3, 8}; {} for any other text.
std::vector<int> parse_core_list(std::string_view text);

/// Splits the cores into consecutive parts whose sizes differ by at most one. With fewer cores than ranks, ranks share
/// cores.
std::vector<std::vector<int>> divide_cores(const std::vector<int>& cores, int ranks);

/// By local rank, from the `allowed` cores: those of the NUMA node of its GPU, if every rank has a GPU and the system
/// reports the node; otherwise an equal part.
std::vector<std::vector<int>> cores_of_ranks(int ranks, const std::vector<Gpu>& gpus, const std::vector<int>& allowed,
                                             const ReadText& read);
/// The same for the cores of this process and the files of this machine.
std::vector<std::vector<int>> cores_of_ranks(int ranks, const Hardware& hardware);

/// Compute threads per rank on one machine, if a launcher has bound each rank to different cores: the total number of
/// cores divided by the ranks. nullopt: all ranks see the same cores, so they are not bound.
std::optional<int> threads_of_bound_ranks(const std::vector<std::vector<int>>& cores_of_ranks);

}  // namespace lockstep
