// The socket of the rendezvous store, bound before any rank runs. Torch-free.
#pragma once

#include <string>

#include "base/descriptor.h"

namespace lockstep {

struct StoreListener {
  Descriptor socket;
  int port = 0;
};

/// Bound here, so that no port has to be chosen by anybody (port 0: any free one) and nobody can take it meanwhile;
/// rank 0 serves the store on it. `listening`: early ranks wait in its queue instead of being refused. Without it, a
/// program that knows nothing of the socket can still bind the port itself. Throws: LaunchError (exit 2) when the
/// address is not this machine's, or naming the process that has the port.
StoreListener bind_store_listener(const std::string& address, int port, bool listening);

}  // namespace lockstep
