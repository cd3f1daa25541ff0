// The processes that started this rank and watch it. Torch-free.
#pragma once

#include <string>
#include <vector>

#include <lockstep/base/variables.h>
#include <lockstep/environment/identity.h>

#include "base/descriptor.h"

namespace lockstep {

struct LauncherProcess {
  Descriptor handle{};  ///< readable when the process has ended
  std::string name{};   ///< "pid 71 (torchrun)"
};

/// torchrun's agent, mpirun or its daemon, slurmstepd, and the scripts between it and this process: scripts were given
/// this rank's variables, too, the launcher was not. Empty where nobody is known to watch this rank: variables that
/// were set by hand or for a container, a launcher outside of this container. Throws: CommError if one of them ended
/// meanwhile.
std::vector<LauncherProcess> open_launcher(const Identity& identity, const Variables& environment);

}  // namespace lockstep
