// Which ranks share a node, from what the ranks of a launch tell each other. Torch-free.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace lockstep {

/// What one rank knows by itself.
struct NodeClaim {
  int local_rank = 0;
  int node = -1;  ///< as the launcher numbers it; -1: it does not say
  std::string host{};
};

struct NodePlace {
  int node = 0;
  int nodes = 1;
  int local_size = 1;  ///< ranks of this node
  bool operator==(const NodePlace&) const = default;
};

/// By rank. Where some launcher does not number the nodes, ranks of one host share a node, and every further local rank
/// 0 of a host opens another one; nodes are then numbered by their first rank.
std::vector<NodePlace> place_on_nodes(std::span<const NodeClaim> ranks);

}  // namespace lockstep
