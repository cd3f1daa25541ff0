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

/// For a launch on several nodes: warns if the name is one of a loopback address here, as Debian's /etc/hosts has it
/// for the machine's own name. Other machines could not reach it, but all nodes may be on this one. An address that is
/// given as 127.0.0.1 or localhost is meant.
void warn_of_loopback(const std::string& address);

}  // namespace lockstep
