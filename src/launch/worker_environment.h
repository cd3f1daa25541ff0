// What a worker finds in its environment. Pure. Torch-free.
#pragma once

#include <string>

#include <lockstep/base/variables.h>
#include <lockstep/launch/launcher.h>

namespace lockstep {

/// Names every process that a launch brings about, for those who have to end them: inherited by children and
/// grandchildren, unlike a parent or a group. Launches inside launches add their own.
inline constexpr const char* kLaunchMark = "LOCKSTEP_LAUNCH_ID";

/// What all ranks of one attempt have in common.
struct Attempt {
  int number = 0;  ///< restarts before it
  int master_port = 0;
  std::string run_id{};
  std::string launch_id{};
  int terminal_width = 0;  ///< of the status line; 0: none
};

int world_size(const LaunchRequest& request);
int local_world_size(const LaunchRequest& request);
int first_rank(const LaunchRequest& request);  ///< of this machine

/// The request's variables, with torchrun's complete set and our own descriptors over them; OMP_NUM_THREADS and
/// TORCH_CPP_LOG_LEVEL only where the user set none.
Variables worker_environment(const LaunchRequest& request, const Attempt& attempt, int local_rank);

}  // namespace lockstep
