#include "environment/nodes.h"

#include <algorithm>
#include <map>

#include "base/mapped.h"

namespace lockstep {
namespace {

std::vector<int> number_by_host(std::span<const NodeClaim> ranks) {
  std::vector<int> nodes;
  std::map<std::string_view, int> newest;  // per host
  int count = 0;
  for (const NodeClaim& rank : ranks) {
    const bool is_new = rank.local_rank == 0 || !newest.contains(rank.host);
    nodes.push_back(is_new ? newest[rank.host] = count++ : newest[rank.host]);
  }
  return nodes;
}

}  // namespace

std::vector<NodePlace> place_on_nodes(std::span<const NodeClaim> ranks) {
  const bool are_named = std::ranges::all_of(ranks, [](const NodeClaim& rank) { return rank.node >= 0; });
  const std::vector<int> nodes = are_named ? mapped(ranks, &NodeClaim::node) : number_by_host(ranks);
  const int count = nodes.empty() ? 0 : *std::ranges::max_element(nodes) + 1;
  return mapped(nodes, [&](int node) {
    return NodePlace{.node = node, .nodes = count, .local_size = static_cast<int>(std::ranges::count(nodes, node))};
  });
}

}  // namespace lockstep
