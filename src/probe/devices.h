// The GPUs of the ranks: a kernel, copies from and to the host, and copies between each two of them.
#pragma once

#include <lockstep/session.h>

#include "probe/results.h"

namespace lockstep {

/// Collective.
void check_devices(Session& session, Results& results);

}  // namespace lockstep
