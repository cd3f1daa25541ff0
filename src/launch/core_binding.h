// Which cores a rank runs on, where binding was asked for. Torch-free.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include <lockstep/environment/hardware.h>

#include "environment/cpu_topology.h"

namespace lockstep {

/// "0-3,8" -> {0, 1, 2, 3, 8}; {} for anything else.
std::vector<int> parse_core_list(std::string_view text);

/// Neighbours stay together, shares differ by one at most; with fewer cores than ranks, cores are shared.
std::vector<std::vector<int>> divide_cores(const std::vector<int>& cores, int ranks);

/// By local rank, of the `allowed` cores: those of the NUMA node of its GPU, if there is a GPU for every rank and the
/// system knows; else an equal share.
std::vector<std::vector<int>> cores_of_ranks(int ranks, const std::vector<Gpu>& gpus, const std::vector<int>& allowed,
                                             const ReadText& read);
/// With this process's cores and this machine's files.
std::vector<std::vector<int>> cores_of_ranks(int ranks, const Hardware& hardware);

/// Those this process may run on.
std::vector<int> allowed_cores();

/// Compute threads for each of the ranks of one machine, of which a launcher may have bound each to cores of its own:
/// all their cores together, divided among them. nullopt: all see the same cores, so nothing was bound.
std::optional<int> threads_of_bound_ranks(const std::vector<std::vector<int>>& cores_of_ranks);

}  // namespace lockstep
