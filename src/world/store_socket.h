// The rendezvous store's address, walked with sockets of our own: c10d's client waits without end for a listener that
// says nothing, and its server listens on every interface.
#pragma once

#include <chrono>
#include <string>

#include <lockstep/environment/identity.h>

namespace lockstep {

/// Every rank but the first: waits until a c10d store answers at MASTER_ADDR:MASTER_PORT; a line every 10 s while
/// nobody does. Throws: CommError: nobody came within `timeout` (exit 124); something that is no store listens there
/// (exit 2, after 4 s at most).
void reach_store(const Identity& identity, std::chrono::milliseconds timeout);

/// This machine's address on the interface that leads to MASTER_ADDR; "": not known.
std::string local_address(const Identity& identity);

/// "127.0.0.1:29500"
std::string store_address(const Identity& identity);

}  // namespace lockstep
