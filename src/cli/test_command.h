// `lockstep test`: a live training with several ranks on this machine. Torch-free; the ranks are lockstep-probe.
#pragma once

#include <span>
#include <string>

#include <lockstep/base/variables.h>

namespace lockstep {

/// Prints each finding as it comes, then recommendations and the verdict. Returns 0 if the machine is ready, else 1.
/// Throws: ConfigError for bad usage, LaunchError if there is no probe.
int test_command(std::span<const std::string> args, const Variables& variables);

}  // namespace lockstep
