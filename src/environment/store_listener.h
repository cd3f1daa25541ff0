// The socket of the rendezvous store, bound before any rank runs. Torch-free.
#pragma once

#include <string>

#include "base/descriptor.h"

namespace lockstep {

struct StoreListener {
  Descriptor socket;
  int port = 0;
};

/// Binds the socket on which rank 0 serves the store, so that the port (0: any free port) is reserved before the ranks
/// start. `listening`: ranks that connect early wait in its queue instead of being rejected. If false, a program that
/// does not use the socket can still bind the port itself. Throws: LaunchError (exit 2) if the address does not belong
/// to this machine, or naming the process that uses the port.
StoreListener bind_store_listener(const std::string& address, int port, bool listening);

}  // namespace lockstep
