// Environment variables of a worker. Pure. Torch-free.
#pragma once

#include <string>

#include <lockstep/base/variables.h>
#include <lockstep/launch/launcher.h>

namespace lockstep {

/// Values that are common to all ranks of one attempt.
struct Attempt {
  int number = 0;  ///< number of earlier restarts
  int master_port = 0;
  std::string run_id{};
  std::string launch_id{};
  int terminal_width = 0;  ///< of the status line; 0: no status line
};

int world_size(const LaunchRequest& request);
int local_world_size(const LaunchRequest& request);
int first_rank(const LaunchRequest& request);  ///< of this machine

/// Variables of the request, with all of torchrun's variables and our own descriptors added or replaced.
/// OMP_NUM_THREADS and TORCH_CPP_LOG_LEVEL are set only if the user has not set them.
Variables worker_environment(const LaunchRequest& request, const Attempt& attempt, int local_rank);

}  // namespace lockstep
