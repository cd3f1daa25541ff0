// Finds out which ranks share a node, from the data that the ranks of a launch exchange. Torch-free.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace lockstep {

/// The data of one rank.
struct NodeClaim {
  int local_rank = 0;
  int node = -1;  ///< the launcher's node number; -1: not known
  std::string host{};
};

struct NodePlace {
  int node = 0;
  int nodes = 1;
  int local_size = 1;  ///< number of ranks on this node
  bool operator==(const NodePlace&) const = default;
};

/// Indexed by rank. If a launcher gives no node numbers, ranks of one host share a node, but every further local rank 0
/// of a host starts another node; nodes are then numbered by their first rank.
std::vector<NodePlace> place_on_nodes(std::span<const NodeClaim> ranks);

}  // namespace lockstep
