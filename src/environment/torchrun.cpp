#include <limits>

#include <fmt/format.h>

#include "environment/launch_variables.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
constexpr int kRefused = 0;  // keeps the checks that follow from complaining about the same variable again

/// A number that must be there.
int required(VariableReader& reader, const char* name, std::int64_t min, std::string_view meaning) {
  if (!reader.has(name)) {
    reader.missing(name, meaning);
  }
  return reader.number(name, min, kMaxInt).value_or(kRefused);
}

/// Where ranks meet; a single rank meets nobody.
void read_master(VariableReader& reader, Identity& identity) {
  const bool alone = identity.world_size == 1;
  if (!alone && !reader.has("MASTER_ADDR")) {
    reader.missing("MASTER_ADDR", "the address of rank 0's machine");
  }
  if (!alone && !reader.has("MASTER_PORT")) {
    reader.missing("MASTER_PORT", "a free port of rank 0's machine");
  }
  identity.master_addr = reader.text("MASTER_ADDR").value_or(identity.master_addr);
  identity.master_port = reader.number("MASTER_PORT", 1, 65535).value_or(0);
}

void read_place_on_node(VariableReader& reader, Identity& identity) {
  if (identity.world_size == 1) {
    identity.local_rank = reader.number("LOCAL_RANK", 0, kMaxInt).value_or(0);
    identity.local_world_size = reader.number("LOCAL_WORLD_SIZE", 1, kMaxInt).value_or(1);
    return;
  }
  identity.local_rank = required(reader, "LOCAL_RANK", 0, "this rank's number on its node");
  identity.local_world_size = required(reader, "LOCAL_WORLD_SIZE", 1, "the number of ranks on this node");
}

void read_node(VariableReader& reader, Identity& identity) {
  const auto nodes = reader.number("GROUP_WORLD_SIZE", 1, kMaxInt);
  const auto node = reader.number("GROUP_RANK", 0, kMaxInt);
  const int local = identity.local_world_size;
  const bool known = local != kRefused && identity.world_size != kRefused;
  identity.nodes = nodes ? *nodes : known ? (identity.world_size - 1) / local + 1 : kRefused;
  identity.node = node ? *node : known ? identity.rank / local : 0;
}

void read_lockstep(VariableReader& reader, Identity& identity) {
  identity.launcher = "lockstep";
  identity.control_fd = reader.number("LOCKSTEP_CONTROL_FD", 0, kMaxInt).value_or(-1);
  identity.progress_fd = reader.number("LOCKSTEP_PROGRESS_FD", 0, kMaxInt).value_or(-1);
  identity.restart = reader.number("LOCKSTEP_RESTART", 0, kMaxInt).value_or(0);
  identity.store_fd = reader.number("LOCKSTEP_STORE_FD", 0, kMaxInt).value_or(-1);
  identity.run_id = reader.text("LOCKSTEP_RUN_ID").value_or("");
  identity.devices = reader.text("LOCKSTEP_DEVICES").value_or("");
}

void read_torchelastic(VariableReader& reader, Identity& identity) {
  identity.launcher = reader.has("TORCHELASTIC_RUN_ID") ? "torchrun" : "environment";
  identity.run_id = reader.text("TORCHELASTIC_RUN_ID").value_or("");
  identity.restart = reader.number("TORCHELASTIC_RESTART_COUNT", 0, kMaxInt).value_or(0);
  identity.agent_store = reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";  // what Python's str(True) writes
}

}  // namespace

std::optional<Identity> read_torchrun(VariableReader& reader) {
  const bool ours = reader.has("LOCKSTEP_CONTROL_FD");
  if (!ours && !reader.has("RANK") && !reader.has("WORLD_SIZE") && !reader.has("LOCAL_RANK")) {
    return std::nullopt;
  }
  Identity identity{};
  identity.rank = required(reader, "RANK", 0, "this process's number among all ranks");
  identity.world_size = required(reader, "WORLD_SIZE", 1, "the number of ranks");
  read_place_on_node(reader, identity);
  read_node(reader, identity);
  read_master(reader, identity);
  if (ours) {
    read_lockstep(reader, identity);
  } else {
    read_torchelastic(reader, identity);
  }
  return identity;
}

}  // namespace lockstep
