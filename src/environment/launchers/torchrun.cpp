#include <algorithm>

#include <fmt/format.h>

#include "base/text.h"
#include "environment/launchers/launch_variables.h"

namespace lockstep {
namespace {

void read_place_on_node(VariableReader& reader, Identity& identity) {
  if (identity.world_size == 1) {
    identity.local_rank = reader.number("LOCAL_RANK", 0).value_or(0);
    identity.local_world_size = reader.number("LOCAL_WORLD_SIZE", 1).value_or(1);
  } else {
    identity.local_rank = reader.required_number("LOCAL_RANK", 0, "this rank's number on its node");
    identity.local_world_size = reader.required_number("LOCAL_WORLD_SIZE", 1, "the number of ranks on this node");
  }
  reader.check_below("LOCAL_RANK", identity.local_rank, "LOCAL_WORLD_SIZE", identity.local_world_size);
}

void read_node(VariableReader& reader, Identity& identity) {
  const auto nodes = reader.number("GROUP_WORLD_SIZE", 1);
  const auto node = reader.number("GROUP_RANK", 0);
  const int local = identity.local_world_size;
  const bool known = local != VariableReader::kRefused && identity.world_size != VariableReader::kRefused;
  identity.nodes = nodes ? *nodes : known ? (identity.world_size - 1) / local + 1 : VariableReader::kRefused;
  identity.node = node ? *node : known ? identity.rank / local : 0;
  reader.check_below("GROUP_RANK", identity.node, "GROUP_WORLD_SIZE", identity.nodes);
}

/// Of torchrun alone: others may start more ranks on one node than on the next.
void check_equal_nodes(VariableReader& reader, const Identity& identity) {
  const auto ranks = static_cast<std::int64_t>(identity.nodes) * identity.local_world_size;
  if (ranks > 0 && identity.world_size > 0 && ranks != identity.world_size) {
    reader.problem(fmt::format("WORLD_SIZE={} and LOCAL_WORLD_SIZE={} on {} node{}: found {} ranks, expected {}",
                               identity.world_size, identity.local_world_size, identity.nodes,
                               identity.nodes == 1 ? "" : "s", ranks, identity.world_size),
                   "every node runs the same number of ranks");
  }
}

/// No node has more ranks than there are.
void check_local_size(VariableReader& reader, const Identity& identity) {
  if (identity.world_size > 0 && identity.local_world_size > identity.world_size) {
    reader.problem(fmt::format("LOCAL_WORLD_SIZE={} and WORLD_SIZE={}: expected 1 to {}", identity.local_world_size,
                               identity.world_size, identity.world_size));
  }
}

void read_lockstep(VariableReader& reader, Identity& identity) {
  identity.launcher = "lockstep";
  identity.control_fd = reader.number("LOCKSTEP_CONTROL_FD", 0).value_or(-1);
  identity.progress_fd = reader.number("LOCKSTEP_PROGRESS_FD", 0).value_or(-1);
  identity.restart = reader.number("LOCKSTEP_RESTART", 0).value_or(0);
  identity.store_fd = reader.number("LOCKSTEP_STORE_FD", 0).value_or(-1);
  identity.run_id = reader.text("LOCKSTEP_RUN_ID").value_or("");
  identity.devices = reader.text("LOCKSTEP_DEVICES").value_or("");
}

void read_torchelastic(VariableReader& reader, Identity& identity) {
  identity.launcher = reader.has("TORCHELASTIC_RUN_ID") ? "torchrun" : "environment";
  identity.run_id = reader.text("TORCHELASTIC_RUN_ID").value_or("");
  identity.restart = reader.number("TORCHELASTIC_RESTART_COUNT", 0).value_or(0);
  identity.error_file = reader.text("TORCHELASTIC_ERROR_FILE").value_or("");
  identity.agent_store = reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";  // what Python's str(True) writes
}

void read_rank(VariableReader& reader, Identity& identity) {
  identity.rank = reader.required_number("RANK", 0, "this process's number among all ranks");
  identity.world_size = reader.required_number("WORLD_SIZE", 1, "the number of ranks");
  reader.check_below("RANK", identity.rank, "WORLD_SIZE", identity.world_size);
}

}  // namespace

std::optional<Identity> read_torchrun(VariableReader& reader) {
  const bool ours = reader.has("LOCKSTEP_CONTROL_FD");
  if (!ours && !reader.has("LOCAL_RANK") && !(reader.has("RANK") && reader.has("LOCAL_WORLD_SIZE"))) {
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
  if (identity.launcher == "torchrun") {
    identity.ranks_flag = "torchrun --nproc-per-node";
    check_equal_nodes(reader, identity);
  } else {
    check_local_size(reader, identity);
  }
  return identity;
}

std::optional<Identity> read_plain(VariableReader& reader) {
  if (!reader.has("RANK") && !reader.has("WORLD_SIZE")) {
    return std::nullopt;
  }
  Identity identity{.launcher = "environment"};
  read_rank(reader, identity);
  identity.node = identity.rank;
  identity.nodes = identity.world_size;
  read_master(reader, identity);
  // Kubeflow's operator counts processes in WORLD_SIZE, but pods in RANK.
  const auto per_pod = parse_int(reader.peek("PET_NPROC_PER_NODE").value_or(""));
  if (per_pod && *per_pod > 1) {
    reader.problem(fmt::format("RANK={} without LOCAL_RANK, and PET_NPROC_PER_NODE={}: RANK is a pod's number there, "
                               "WORLD_SIZE={} counts processes",
                               identity.rank, *per_pod, identity.world_size),
                   "start through `lockstep run -- <program>` or torchrun, which start the pod's ranks");
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
      fmt::format("PET_NNODES={}, but nothing launched this program: it trains on this machine alone; start it with "
                  "`lockstep run -- <program>` or torchrun",
                  printable(*nodes)));
  return identity;
}

}  // namespace lockstep
