#include <algorithm>

#include <fmt/format.h>

#include "base/text.h"
#include "environment/launchers/launch_variables.h"
#include "environment/own_variables.h"

namespace lockstep {
namespace {

/// A rank of our launcher started this process, and the variables are that rank's. Those of a launcher in between would
/// name another run.
bool are_of_a_parent(const VariableReader& reader) {
  const auto run = reader.peek(own_variables::kRunId);
  return run && run == reader.peek("TORCHELASTIC_RUN_ID") && !reader.has(own_variables::kControlFd);
}

/// The variable with the node number: torchrun's, or that of Lightning's scripts.
const char* node_variable(const VariableReader& reader) {
  return reader.has("GROUP_RANK") || !reader.has("NODE_RANK") ? "GROUP_RANK" : "NODE_RANK";
}

void read_rank(VariableReader& reader, Identity& identity) {
  // Lightning's scripts set no RANK on the first node, where it equals LOCAL_RANK.
  const bool on_first_node = !reader.has("RANK") && reader.has("LOCAL_RANK") && reader.peek("NODE_RANK") == "0";
  const char* name = on_first_node ? "LOCAL_RANK" : "RANK";
  identity.rank = reader.required_number(name, 0, "this process's number among all ranks");
  identity.world_size = reader.required_number("WORLD_SIZE", 1, "the number of ranks");
  reader.check_below(name, identity.rank, "WORLD_SIZE", identity.world_size);
}

void read_place_on_node(VariableReader& reader, Identity& identity) {
  const bool alone = identity.world_size == 1;
  identity.local_rank = alone ? reader.number("LOCAL_RANK", 0).value_or(0)
                              : reader.required_number("LOCAL_RANK", 0, "this rank's number on its node");
  if (alone || reader.has("LOCAL_WORLD_SIZE")) {
    identity.local_world_size = reader.number("LOCAL_WORLD_SIZE", 1).value_or(alone ? 1 : VariableReader::kRefused);
    reader.check_below("LOCAL_RANK", identity.local_rank, "LOCAL_WORLD_SIZE", identity.local_world_size);
    return;
  }
  // The ranks before this node's are on other nodes; all later ranks may be on this node.
  const int on_other_nodes = std::max(0, identity.rank - identity.local_rank);
  identity.local_world_size = std::max(VariableReader::kRefused, identity.world_size - on_other_nodes);
  identity.local_size_is_guess = true;
  reader.check_below("LOCAL_RANK", identity.local_rank, "WORLD_SIZE", identity.world_size);
}

void read_node(VariableReader& reader, Identity& identity) {
  const char* number = node_variable(reader);
  const auto nodes = reader.number("GROUP_WORLD_SIZE", 1);
  const auto node = reader.number(number, 0);
  const int local = identity.local_world_size;
  const bool known = local != VariableReader::kRefused && identity.world_size != VariableReader::kRefused;
  identity.node_is_guess = !reader.has("GROUP_WORLD_SIZE") || !reader.has(number);
  identity.node = node ? *node : known ? identity.rank / local : 0;
  identity.nodes = nodes ? *nodes : known ? std::max((identity.world_size - 1) / local, identity.node) + 1 : 1;
  if (node && nodes) {
    reader.check_below(number, *node, "GROUP_WORLD_SIZE", *nodes);
  }
}

/// Nodes may differ; each has at least one rank, and a single node has all.
void check_local_size(VariableReader& reader, const Identity& identity) {
  if (!reader.problems().empty() || identity.local_size_is_guess) {
    return;
  }
  const int others = identity.node_is_guess ? 0 : identity.nodes - 1;
  const int most = identity.world_size - others;
  const int least = !identity.node_is_guess && others == 0 ? most : 1;
  if (identity.local_world_size < least || identity.local_world_size > most) {
    const std::string nodes =
        identity.node_is_guess ? "" : fmt::format(" on {} node{}", identity.nodes, others > 0 ? "s" : "");
    reader.problem(fmt::format("LOCAL_WORLD_SIZE={} and WORLD_SIZE={}{}: expected {}", identity.local_world_size,
                               identity.world_size, nodes,
                               most < 1        ? "a rank on every node"
                               : least == most ? fmt::format("{}", most)
                                               : fmt::format("1 to {}", most)));
  }
}

void read_lockstep(VariableReader& reader, Identity& identity) {
  identity.launcher = "lockstep";
  identity.control_fd = reader.number(own_variables::kControlFd, 0).value_or(-1);
  identity.progress_fd = reader.number(own_variables::kProgressFd, 0).value_or(-1);
  identity.restart = reader.number(own_variables::kRestart, 0).value_or(0);
  identity.store_fd = reader.number(own_variables::kStoreFd, 0).value_or(-1);
  identity.run_id = reader.text(own_variables::kRunId).value_or("");
  identity.devices = reader.text(own_variables::kDevices).value_or("");
}

void read_torchelastic(VariableReader& reader, Identity& identity) {
  identity.launcher = reader.has("TORCHELASTIC_RUN_ID") ? "torchrun" : "environment";
  identity.run_id = reader.text("TORCHELASTIC_RUN_ID").value_or("");
  identity.restart = reader.number("TORCHELASTIC_RESTART_COUNT", 0).value_or(0);
  identity.error_file = reader.text("TORCHELASTIC_ERROR_FILE").value_or("");
  identity.agent_store = reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";  // Python's str(True)
}

}  // namespace

std::optional<Identity> read_torchrun(VariableReader& reader) {
  const bool ours = reader.has(own_variables::kControlFd);
  const bool has_rank = reader.has("LOCAL_RANK") || (reader.has("RANK") && reader.has("LOCAL_WORLD_SIZE"));
  if (!ours && (!has_rank || are_of_a_parent(reader))) {
    return std::nullopt;
  }
  Identity identity{};
  read_rank(reader, identity);
  read_place_on_node(reader, identity);
  read_node(reader, identity);
  read_master(reader, identity);
  if (ours) {
    read_lockstep(reader, identity);
  } else {
    read_torchelastic(reader, identity);
  }
  check_local_size(reader, identity);
  if (identity.launcher == "torchrun") {
    identity.ranks_flag = "torchrun --nproc-per-node";
  }
  return identity;
}

std::optional<Identity> read_plain(VariableReader& reader) {
  if ((!reader.has("RANK") && !reader.has("WORLD_SIZE")) || are_of_a_parent(reader)) {
    return std::nullopt;
  }
  Identity identity{.launcher = "environment"};
  read_rank(reader, identity);
  identity.node = identity.rank;
  identity.nodes = identity.world_size;
  read_master(reader, identity);
  // Kubeflow's operator counts processes in WORLD_SIZE but pods in RANK.
  const auto per_pod = parse_int(reader.peek("PET_NPROC_PER_NODE").value_or(""));
  if (per_pod && *per_pod > 1) {
    reader.problem(
        fmt::format("RANK={} without LOCAL_RANK, and PET_NPROC_PER_NODE={}: RANK is then the number of a pod, "
                    "but WORLD_SIZE={} counts processes",
                    identity.rank, *per_pod, identity.world_size),
        "start through `lockstep run -- <program>` or torchrun, which start the ranks of the pod");
  }
  return identity;
}

std::optional<Identity> read_torchrun_settings(VariableReader& reader) {
  const auto nodes = reader.peek("PET_NNODES");
  if (!nodes || *nodes == "1") {
    return std::nullopt;
  }
  Identity identity{.starts_ranks = true};
  identity.hints.push_back(
      fmt::format("PET_NNODES={}, but no launcher started this program: it trains on this machine alone; start it with "
                  "`lockstep run -- <program>` or torchrun",
                  printable(*nodes)));
  return identity;
}

}  // namespace lockstep
