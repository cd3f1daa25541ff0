// The processes that started this one. Torch-free.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include <lockstep/base/variables.h>
#include <lockstep/environment/identity.h>

#include "base/descriptor.h"

namespace lockstep {

struct LauncherProcess {
  Descriptor handle{};  ///< becomes readable when the process ends
  std::string name{};   ///< "pid 71 (torchrun)"
};

/// Those that wait for this rank: torchrun's agent, mpirun or its daemon, slurmstepd, and the scripts between it and
/// this process (scripts have the variables of this rank, the launcher has not). Empty if no process is known to wait
/// for this rank: the variables were set by hand or for a container, or the launcher is outside of this container.
/// Throws: CommError if one of the processes has ended meanwhile.
std::vector<LauncherProcess> open_launcher(const Identity& identity, const Variables& environment);

/// Whether that process started this one, also over others.
bool is_ancestor(pid_t pid);

/// For a hint: how a rank starts a program that is no rank.
inline constexpr const char* kWithoutItsRank =
    "env -u RANK -u LOCAL_RANK -u WORLD_SIZE under torchrun, see \"Launching\" for other launchers";

}  // namespace lockstep
