// lockstep/environment/identity.h
//
// Who this process is within a launch. Torch-free; reads no network.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/base/variables.h>

namespace lockstep {

struct Identity {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node = 0;
  int nodes = 1;
  std::string launcher = "single";       ///< "lockstep", "torchrun", "environment", "single"
  std::vector<std::string> variables{};  ///< the variables it was read from
  std::string master_addr = "127.0.0.1";
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

/// Our own launcher first, then torchrun and anything that sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
/// MASTER_ADDR and MASTER_PORT (one rank: RANK and WORLD_SIZE are enough). nullopt: nobody launched us. Throws:
/// ConfigError listing every missing, malformed or contradictory variable with its value.
std::optional<Identity> detect_identity(const Variables& variables);

}  // namespace lockstep
