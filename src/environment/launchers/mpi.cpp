#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/text.h"
#include "environment/launchers/launch_variables.h"

namespace lockstep {
namespace {

struct MpiNames {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
  const char* pass;  ///< how to set a variable on every rank
};

constexpr MpiNames kOpenMpi{"Open MPI",
                            "OMPI_COMM_WORLD_RANK",
                            "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE",
                            "mpirun -x {}=..."};
constexpr MpiNames kHydra{"Hydra",           "PMI_RANK",        "PMI_SIZE",
                          "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "mpiexec -genv {} ..."};
constexpr MpiNames kMvapich2{"MVAPICH2",
                             "MV2_COMM_WORLD_RANK",
                             "MV2_COMM_WORLD_SIZE",
                             "MV2_COMM_WORLD_LOCAL_RANK",
                             "MV2_COMM_WORLD_LOCAL_SIZE",
                             "mpirun_rsh {}=... <program>"};

/// The process of Hydra or mpirun_rsh that started the ranks of this machine, possibly through shells: these launchers
/// set no variable that only their ranks share. The start time distinguishes processes with the same pid.
std::string find_daemon(const VariableReader& reader) {
  constexpr std::array<std::string_view, 2> kDaemons{"hydra_pmi_proxy", "mpispawn"};
  constexpr int kDeepest = 32;
  std::string process = "self";
  for (int depth = 0; depth < kDeepest; ++depth) {
    // "71 (a name) S 70 ...": the name may contain blanks and parentheses
    const std::string stat = reader.file(fmt::format("/proc/{}/stat", process)).value_or("");
    const auto fields = stat_fields(stat);
    const std::size_t open = stat.find('(');
    const std::size_t close = stat.rfind(')');
    constexpr std::size_t kParent = 1;
    constexpr std::size_t kStart = 19;
    if (fields.size() <= kStart || close < open) {
      return {};
    }
    const std::string_view name = std::string_view(stat).substr(open + 1, close - open - 1);
    if (std::ranges::find(kDaemons, name) != kDaemons.end()) {
      return fmt::format("{}-{}", trim(std::string_view(stat).substr(0, open)), fields[kStart]);
    }
    process = fields[kParent];
  }
  return {};
}

/// A text that the ranks of this launch share with no other launch; "": there is none.
std::string find_launch(VariableReader& reader, const Identity& identity) {
  if (identity.launcher == kOpenMpi.launcher) {
    auto id = reader.text("PMIX_NAMESPACE");
    return printable(id ? *id : reader.text("OMPI_MCA_ess_base_jobid").value_or(""));
  }
  const bool one_machine = identity.local_world_size == identity.world_size;
  return one_machine ? find_daemon(reader) : std::string();
}

/// Azure's "address:port"; false if it is not set.
bool read_azure_master(VariableReader& reader, Identity& identity) {
  constexpr const char* kName = "AZ_BATCH_MASTER_NODE";
  const auto value = reader.text(kName);
  if (!value) {
    return false;
  }
  const std::size_t colon = value->rfind(':');
  const auto port = parse_int(colon == std::string::npos ? "" : std::string_view(*value).substr(colon + 1));
  const std::string host = value->substr(0, colon);
  if (!port || *port < 1 || *port > 65535 || !is_host(host)) {
    reader.problem(fmt::format("{}=\"{}\": expected address:port", kName, printable(*value)));
    return true;
  }
  identity.master_addr = host;
  identity.master_source = kName;
  identity.master_port = static_cast<int>(*port);
  return true;
}

/// Ranks on several machines need the address of rank 0: from the user, or from the cloud in which they run.
void read_address(VariableReader& reader, Identity& identity, const MpiNames& names) {
  if (const auto address = reader.host("MASTER_ADDR")) {
    identity.master_addr = *address;
  } else if (identity.local_world_size == identity.world_size || reader.has("MASTER_ADDR") ||
             read_azure_master(reader, identity)) {
    return;
  } else if (const auto hosts = read_sagemaker_hosts(reader); !hosts.empty()) {
    identity.master_addr = hosts.front();
    identity.master_source = "SM_HOSTS";
  } else {
    reader.missing("MASTER_ADDR",
                   fmt::format("the address of rank 0's machine, as {} of {} ranks run on this one",
                               identity.local_world_size, identity.world_size),
                   fmt::format("set it: {}", fmt::format(fmt::runtime(names.pass), "MASTER_ADDR")));
  }
}

void read_port(VariableReader& reader, Identity& identity, const MpiNames& names) {
  if (reader.has("MASTER_PORT")) {
    identity.master_port = reader.number("MASTER_PORT", 1, 65535).value_or(0);
  } else if (identity.master_port == 0 && !identity.run_id.empty()) {
    identity.master_port = derived_port(identity.run_id);
  } else if (identity.master_port == 0) {
    reader.missing(
        "MASTER_PORT",
        fmt::format("a free port of rank 0's machine: {} sets no variable that only its ranks share", names.launcher),
        fmt::format("set it: {}", fmt::format(fmt::runtime(names.pass), "MASTER_PORT")));
  }
}

Identity read_mpi(VariableReader& reader, const MpiNames& names) {
  const std::string hint = fmt::format("{} sets all of them for its ranks, or none", names.launcher);
  Identity identity{.launcher = names.launcher};
  identity.rank = reader.required_number(names.rank, 0, "this process's number among all ranks", hint);
  identity.world_size = reader.required_number(names.world_size, 1, "the number of ranks", hint);
  identity.local_rank = reader.required_number(names.local_rank, 0, "this rank's number on its node", hint);
  identity.local_world_size =
      reader.required_number(names.local_world_size, 1, "the number of ranks on this node", hint);
  if (!reader.problems().empty()) {
    return identity;
  }
  reader.check_below(names.rank, identity.rank, names.world_size, identity.world_size);
  reader.check_below(names.local_rank, identity.local_rank, names.local_world_size, identity.local_world_size);
  if (identity.local_world_size > identity.world_size) {
    reader.problem(fmt::format("{}={} and {}={}: expected 1 to {}", names.local_world_size, identity.local_world_size,
                               names.world_size, identity.world_size, identity.world_size));
  }
  identity.nodes = (identity.world_size - 1) / identity.local_world_size + 1;
  identity.node = identity.rank / identity.local_world_size;
  identity.node_is_guess = identity.world_size > identity.local_world_size;
  identity.ranks_flag = "mpirun -np";
  if (identity.world_size > 1) {
    identity.run_id = find_launch(reader, identity);
    read_address(reader, identity, names);
    read_port(reader, identity, names);
  }
  return identity;
}

}  // namespace

std::optional<Identity> read_open_mpi(VariableReader& reader) {
  if (!reader.has(kOpenMpi.rank) && !reader.has(kOpenMpi.world_size)) {
    return std::nullopt;
  }
  return read_mpi(reader, kOpenMpi);
}

/// Slurm's own PMI also sets PMI_RANK and PMI_SIZE: then it is a Slurm step, not Hydra.
std::optional<Identity> read_hydra(VariableReader& reader) {
  if (!reader.has(kHydra.local_rank) && (!reader.has(kHydra.rank) || reader.has("SLURM_STEP_ID"))) {
    return std::nullopt;
  }
  return read_mpi(reader, kHydra);
}

std::optional<Identity> read_mvapich2(VariableReader& reader) {
  if (!reader.has(kMvapich2.rank) && !reader.has(kMvapich2.world_size)) {
    return std::nullopt;
  }
  return read_mpi(reader, kMvapich2);
}

}  // namespace lockstep
