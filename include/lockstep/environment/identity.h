// lockstep/environment/identity.h
//
// Rank, world size and launcher of this process. Torch-free; uses no network.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <lockstep/base/variables.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Which rank this process is, as its launcher says.
struct Identity {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;  ///< number of ranks on this node; nodes may differ
  int node = 0;
  int nodes = 1;
  /// The launcher does not say how many ranks this node has: `local_world_size` is the maximum.
  bool local_size_is_guess = false;
  /// The launcher does not say which node this is: `node` and `nodes` assume that all nodes are alike. The World knows
  /// both numbers after the rendezvous.
  bool node_is_guess = false;
  /// The launcher started one process per node, and this process starts the ranks of its node. `rank` is then the node
  /// number and `world_size` the number of nodes.
  bool starts_ranks = false;
  /// With `starts_ranks`: how many ranks each node starts, once the nodes have exchanged this; {}: all as many as this
  /// one.
  std::vector<int> ranks_per_node{};
  /// "single", "lockstep", "torchrun", "environment", "Open MPI", "Hydra", "MVAPICH2", "LSF", "Slurm", "SageMaker"
  std::string launcher = "single";
  std::string ranks_flag{};              ///< flag of this launcher for the number of ranks per node; "": it has none
  std::vector<std::string> variables{};  ///< the variables from which this identity was read
  std::vector<std::string> hints{};      ///< possible mistakes, e.g. srun missing inside an allocation
  std::string master_addr = "127.0.0.1";
  std::string master_source = "MASTER_ADDR";  ///< variable that `master_addr` was read from
  int master_port = 0;
  bool agent_store = false;  ///< the launcher serves the store: every rank is a client
  std::string run_id{};      ///< the same on all ranks of one launch
  int restart = 0;           ///< 0 on the first attempt
  int store_fd = -1;         ///< our launcher, rank 0: bound socket to serve the store on
  int control_fd = -1;       ///< our launcher: channel to the supervisor
  int progress_fd = -1;      ///< our launcher: progress records of the ranks
  std::string error_file{};  ///< torchrun: file for the error of a failing rank; "": none
  std::string devices{};     ///< our launcher: its choice, in the form of --devices; "": the rank chooses

  /// Our launcher started this process: `lockstep run`, or this program itself (LaunchFacts::started_by_program).
  bool is_supervised() const noexcept { return control_fd >= 0; }
};

/// Checks in this order: our own launcher; torchrun and all that set LOCAL_RANK, or RANK and LOCAL_WORLD_SIZE; LSF's
/// jsrun; Open MPI; Hydra (MPICH, Intel MPI); MVAPICH2; a Slurm step; RANK and WORLD_SIZE without them (Kubeflow);
/// SageMaker without a launcher. nullopt: no launcher; "single" if this looks like a mistake, with the reason in
/// `hints`. May read /proc and LSF's rank file. Throws: ConfigError listing every missing, malformed or contradictory
/// variable with its value.
std::optional<Identity> detect_identity(const Variables& variables);

/// Whether this process starts the ranks of its node: there is no launcher, or it launched one process per node.
inline bool starts_ranks(const std::optional<Identity>& identity) { return !identity || identity->starts_ranks; }

}  // namespace lockstep
