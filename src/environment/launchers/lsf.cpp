#include <fmt/format.h>

#include "base/text.h"
#include "environment/launchers/launch_variables.h"

namespace lockstep {
namespace {

constexpr const char* kRankFile = "LSB_DJOB_RANKFILE";

/// The first line of the file is the node of the batch script; the second is the first node with ranks.
std::string first_compute_host(VariableReader& reader) {
  const std::string path = reader.required_text(kRankFile, "the file that lists the job's hosts", "or set MASTER_ADDR");
  if (path.empty()) {
    return {};
  }
  const auto lines = split(reader.file(path).value_or(""), '\n');
  std::string host(trim(lines.size() > 1 ? lines[1] : ""));
  if (!is_host(host)) {
    reader.problem(fmt::format("{}=\"{}\": line 2 of the file is \"{}\", expected a host name", kRankFile,
                               printable(path), printable(host)),
                   "set MASTER_ADDR to the host of rank 0");
  }
  return host;
}

void read_lsf_master(VariableReader& reader, Identity& identity) {
  if (const auto address = reader.host("MASTER_ADDR")) {
    identity.master_addr = *address;
  } else if (!reader.has("MASTER_ADDR") && identity.local_world_size != identity.world_size) {
    identity.master_addr = first_compute_host(reader);
    identity.master_source = kRankFile;
  }
  const int job = reader.required_number("LSB_JOBID", 0, "the number of LSF's job", "start the ranks with jsrun");
  identity.run_id = fmt::format("lsf-{}", job);
  identity.master_port = reader.number("MASTER_PORT", 1, 65535).value_or(10000 + job % 1000);
}

}  // namespace

std::optional<Identity> read_lsf(VariableReader& reader) {
  if (!reader.has("JSM_NAMESPACE_RANK") && !reader.has("JSM_NAMESPACE_SIZE")) {
    return std::nullopt;
  }
  constexpr const char* kHint = "start the ranks with jsrun";
  Identity identity{.launcher = "LSF", .ranks_flag = "jsrun --tasks_per_rs"};
  identity.rank = reader.required_number("JSM_NAMESPACE_RANK", 0, "this process's number among all ranks", kHint);
  identity.world_size = reader.required_number("JSM_NAMESPACE_SIZE", 1, "the number of ranks", kHint);
  identity.local_rank = reader.required_number("JSM_NAMESPACE_LOCAL_RANK", 0, "this rank's number on its node", kHint);
  // Some versions do not set their own name for it; all set Open MPI's.
  const char* local_size =
      reader.has("JSM_NAMESPACE_LOCAL_SIZE") ? "JSM_NAMESPACE_LOCAL_SIZE" : "OMPI_COMM_WORLD_LOCAL_SIZE";
  identity.local_world_size = reader.required_number(local_size, 1, "the number of ranks on this node", kHint);
  if (!reader.problems().empty()) {
    return identity;
  }
  reader.check_below("JSM_NAMESPACE_RANK", identity.rank, "JSM_NAMESPACE_SIZE", identity.world_size);
  reader.check_below("JSM_NAMESPACE_LOCAL_RANK", identity.local_rank, local_size, identity.local_world_size);
  if (identity.local_world_size > identity.world_size) {
    reader.problem(fmt::format("{}={} and JSM_NAMESPACE_SIZE={}: expected 1 to {}", local_size,
                               identity.local_world_size, identity.world_size, identity.world_size));
  }
  identity.nodes = (identity.world_size - 1) / identity.local_world_size + 1;
  identity.node = identity.rank / identity.local_world_size;
  identity.node_is_guess = identity.world_size > identity.local_world_size;
  if (identity.world_size > 1) {
    read_lsf_master(reader, identity);
  }
  return identity;
}

}  // namespace lockstep
