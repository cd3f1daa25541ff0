// All ranks of a launch find one store.
#pragma once

#include <chrono>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <lockstep/environment/identity.h>

namespace lockstep {

struct Meeting {
  /// This process's own connection, below a prefix that no other launch, restart or earlier world uses.
  c10::intrusive_ptr<c10d::Store> store{};
  std::string address{};  ///< this machine's, on the interface that leads to the store
};

/// Collective. Connects to the launch's store (or serves it) and waits until every rank is there; a line every 10 s
/// says who is missing. Throws: CommError naming the missing ranks (exit 124); a port that is taken, a store of another
/// run, a rank that two processes claim (exit 2); ranks that were told different world sizes or are of different
/// versions (exit 78).
Meeting rendezvous(const Identity& identity, std::chrono::milliseconds timeout);

/// An id that lives as long as the store of torchrun's agents, and with it as long as the launch: agents come and go,
/// and count restarts differently. "": no agent serves a store, or it cannot be reached.
std::string agent_launch_id(const Identity& identity);

// The store of c10d with text for values. Throw: CommError when the store, or the connection to it, is gone.
void store_set(c10d::Store& store, const std::string& key, std::string_view value);
std::string store_get(c10d::Store& store, const std::string& key);
bool store_check(c10d::Store& store, const std::string& key);
std::int64_t store_add(c10d::Store& store, const std::string& key, std::int64_t delta);
/// Waits at most `timeout`; false: the key did not appear.
bool store_wait(c10d::Store& store, const std::string& key, std::chrono::milliseconds timeout);

}  // namespace lockstep
