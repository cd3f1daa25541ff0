// The state of LBFGS, which differs from that of all other optimizers: see Note [State of LBFGS].
#pragma once

#include "optim/param_groups.h"
#include "optim/state_fields.h"

namespace lockstep {

void write_lbfgs(const BuiltOptimizer& built, StateWriter& writer);
LoadedStates read_lbfgs(const BuiltOptimizer& built, StateReader& reader);

}  // namespace lockstep
