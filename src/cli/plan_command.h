// `lockstep plan`: the plan of a run, without a program. Torch-free.
#pragma once

#include <span>
#include <string>

#include <lockstep/base/variables.h>
#include <lockstep/environment/identity.h>

namespace lockstep {

/// A launch of one process on each of `nodes` equal nodes, which starts the ranks of its node; this is node 0.
Identity one_process_per_node(int nodes, std::string launcher);

/// `args`: the arguments after `lockstep plan`. Prints the plan; returns 0. Throws: ConfigError.
int plan_command(std::span<const std::string> args, const Variables& variables);

}  // namespace lockstep
