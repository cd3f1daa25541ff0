// Connects all ranks of a launch to one store.
#pragma once

#include <chrono>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <lockstep/environment/identity.h>
#include <lockstep/environment/launch_name.h>

namespace lockstep {

struct JoinedStore {
  /// Connection of this process, with a key prefix that no other launch, restart or earlier world uses.
  c10::intrusive_ptr<c10d::Store> store{};
  std::string address{};  ///< address of this machine on the interface to the store
};

/// Collective. Connects to the launch's store (or serves it) and waits until every rank is connected; logs the missing
/// ranks every 10 s. Throws: CommError naming the missing ranks (exit 124); for a port in use, a store of another run,
/// or a rank that two processes claim (exit 2); for different world sizes or versions (exit 78).
JoinedStore rendezvous(const Identity& identity, std::chrono::milliseconds timeout);

/// Collective. The part of rendezvous() after the connection: `served` is this process's connection to the store of the
/// launch. Every rank asks the store a fixed number of questions; rank 0, one more for each rank.
c10::intrusive_ptr<c10d::Store> wait_for_all_ranks(const c10::intrusive_ptr<c10d::Store>& served,
                                                   const Identity& identity, std::chrono::milliseconds timeout);

/// With torchrun, rank 0 takes the id from the store of the agents, which exists as long as the launch: agents can
/// leave and join, and they count restarts differently. All other ranks keep `name`. Throws: CommError as
/// reach_store().
LaunchName identify_launch(LaunchName name, const Identity& identity, std::chrono::milliseconds timeout);

}  // namespace lockstep
