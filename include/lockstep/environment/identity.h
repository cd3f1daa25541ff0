// lockstep/environment/identity.h
//
// Who this process is within a launch. Torch-free; reads no network.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/base/variables.h>

namespace [[gnu::visibility("default")]] lockstep {

struct Identity {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;  ///< on this node; nodes may differ
  int node = 0;
  int nodes = 1;
  /// The launcher does not say how many ranks this node has: `local_world_size` is the most there can be.
  bool local_size_is_guess = false;
  /// The launcher does not say which node this is: `node` and `nodes` are as if all nodes were like this one. The World
  /// knows both numbers once the ranks have met.
  bool node_is_guess = false;
  /// The launcher started one process on each node, and the node's ranks are ours to start: `rank` is the node's
  /// number then, `world_size` the number of nodes.
  bool starts_ranks = false;
  /// With `starts_ranks`: how many ranks each node starts, once the nodes have told each other; {}: as many as this
  /// one.
  std::vector<int> ranks_per_node{};
  /// "single", "lockstep", "torchrun", "environment", "Open MPI", "Hydra", "MVAPICH2", "LSF", "Slurm", "SageMaker"
  std::string launcher = "single";
  std::string ranks_flag{};              ///< tells this launcher how many ranks a node gets; "" where no flag does
  std::vector<std::string> variables{};  ///< the variables it was read from
  std::vector<std::string> hints{};      ///< what looks forgotten, e.g. srun inside an allocation
  std::string master_addr = "127.0.0.1";
  std::string master_source = "MASTER_ADDR";  ///< the variable that `master_addr` comes from
  int master_port = 0;
  bool agent_store = false;  ///< the launcher serves the store: every rank is a client
  std::string run_id{};      ///< same on all ranks of one launch
  int restart = 0;           ///< 0 on the first attempt
  int store_fd = -1;         ///< our launcher, rank 0: bound socket to serve the store on
  int control_fd = -1;       ///< our launcher: the supervisor's control channel
  int progress_fd = -1;      ///< our launcher: the ranks' progress records
  std::string error_file{};  ///< torchrun: where a failing rank leaves its error; "": nowhere
  std::string devices{};     ///< our launcher: what it chose, as --devices says it; "": the rank chooses
};

/// Asks, in this order, for: our own launcher, torchrun and anything that sets RANK, WORLD_SIZE and LOCAL_RANK; LSF's
/// jsrun; Open MPI; Hydra (MPICH, Intel MPI); MVAPICH2; a Slurm step; RANK and WORLD_SIZE alone (Kubeflow); SageMaker
/// without a launcher. nullopt: nobody launched us; "single" where that looks like a mistake, with the reason in
/// `hints`. May read /proc and LSF's rank file. Throws: ConfigError listing every missing, malformed or contradictory
/// variable with its value.
std::optional<Identity> detect_identity(const Variables& variables);

/// Whether the ranks of this node are ours to start: nobody launched us, or one process was launched on each node.
inline bool starts_ranks(const std::optional<Identity>& identity) { return !identity || identity->starts_ranks; }

}  // namespace lockstep
