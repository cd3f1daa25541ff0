// Launchers of several machines tell each other how many ranks each of them starts, before any rank runs. Torch-free.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "supervise/signal_inbox.h"

namespace lockstep {

struct NodeMeeting {
  int node = 0;
  int nodes = 1;
  std::string address{};  ///< of node 0, which listens there
  int port = 0;           ///< where the store will be as soon as everybody knows
  std::string run_id{};   ///< launchers of another run are not answered
};

struct RanksPerNode {
  std::vector<int> ranks{};
  std::optional<int> signal{};  ///< that ended the wait; `ranks` is empty then
};

/// Collective over the launchers of a run, one per node. `ranks`: those of this node. A line every 10 s says who is
/// missing. Throws: LaunchError after `timeout` (exit 124), naming the nodes that did not come; when the port is taken,
/// or what listens there is no launcher (exit 2).
RanksPerNode exchange_ranks_per_node(NodeMeeting meeting, int ranks, std::chrono::milliseconds timeout,
                                     SignalInbox& signals);

}  // namespace lockstep
