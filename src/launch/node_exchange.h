// Launchers of several machines exchange their numbers of ranks before any rank starts. Torch-free.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "supervise/signal_inbox.h"

namespace lockstep {

struct NodeExchange {
  int node = 0;
  int nodes = 1;
  std::string address{};  ///< address of node 0, which listens on it
  int port = 0;           ///< port of the exchange, and afterwards of the store
  std::string run_id{};   ///< launchers of another run get no answer
};

struct RanksPerNode {
  std::vector<int> ranks{};
  std::optional<int> signal{};  ///< signal that ended the wait; `ranks` is then empty
};

/// Collective over the launchers of a run, one per node. `ranks`: number of ranks on this node. Logs the missing nodes
/// every 10 s. Throws: LaunchError naming the missing nodes after `timeout` (exit 124); if the port is in use, or the
/// listener is not a launcher (exit 2).
RanksPerNode exchange_ranks_per_node(NodeExchange exchange, int ranks, std::chrono::milliseconds timeout,
                                     SignalInbox& signals);

}  // namespace lockstep
