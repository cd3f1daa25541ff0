// The collectives of a World, with values that are known, and the time of the exchange of gradients.
#pragma once

#include <lockstep/session.h>

#include "probe/results.h"

namespace lockstep {

/// Collective.
void check_collectives(World& world, Results& results);

/// Collective. Also measures how long gradients of several sizes take.
void check_gradients(Session& session, Results& results);

}  // namespace lockstep
