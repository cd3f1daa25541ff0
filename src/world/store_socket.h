// Checks the address of the rendezvous store with our own sockets: c10d's client waits forever for a listener that does
// not answer, and its server listens on every interface.
#pragma once

#include <chrono>
#include <string>

#include <lockstep/environment/identity.h>

namespace lockstep {

/// For every rank that does not serve the store: waits until a c10d store answers at MASTER_ADDR:MASTER_PORT; logs
/// every 10 s while it waits. Throws: CommError if none answered within `timeout` (exit 124), or if the listener is not
/// a store (exit 2, after at most 4 s). Under our launcher a listener that does not answer may be rank 0's, so it is
/// waited for.
void reach_store(const Identity& identity, std::chrono::milliseconds timeout);

/// Address of this machine on the interface over which it reaches the store; "": unknown. The store listens already,
/// perhaps on another address of its name than the first one.
std::string local_address(const Identity& identity);

/// Who serves the store, in words: "rank 0", "torchrun's agent".
const char* store_server(const Identity& identity);

/// "127.0.0.1:29500"
std::string store_address(const Identity& identity);

}  // namespace lockstep
