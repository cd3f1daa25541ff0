// What a PeerMonitor asks for ranks that hang. Torch-free.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "failure/failure.h"
#include "failure/store_link.h"

namespace lockstep {

/// Finds ranks that hang where no supervisor of ours looks for them; supervise/peer_stalls.h does.
class StallFinder {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Finding {
    std::string text{};                ///< for the log, may have several lines; "": nothing new
    std::optional<Failure> failure{};  ///< of the rank that hangs; it ends the run
  };

  virtual ~StallFinder() = default;
  /// What the other ranks of this machine have to know to look at this one. One line.
  virtual std::string about() const = 0;
  /// Another rank of this machine.
  virtual void add(const StoreLink::Peer& peer) = 0;
  /// Call it several times a second.
  virtual Finding look(Time now) = 0;
};

}  // namespace lockstep
