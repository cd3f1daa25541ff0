// The way from a rank to those that must learn of its failure, and back. Torch-free.
#pragma once

#include <chrono>
#include <optional>

#include "failure/failure.h"

namespace lockstep {

/// To a supervisor (rank/channel_link.h) or to the other ranks (failure/store_link.h). A state machine: `step` says
/// what time it is, and nothing waits in here.
class FailureLink {
 public:
  using Time = std::chrono::steady_clock::time_point;

  virtual ~FailureLink() = default;
  /// Tells the other end of a failure. Only the first one is told.
  virtual void announce(const Failure& failure) = 0;
  virtual void step(Time now) = 0;
  /// Why the other end wants this rank to end; nullopt: it does not.
  virtual const std::optional<Failure>& cause() const = 0;
  /// It wants that at once: this rank gets no time to end by itself.
  virtual bool ends_at_once() const = 0;
  /// A descriptor that is readable when there is something to step for; -1: there is none.
  virtual int fd() const noexcept { return -1; }
};

}  // namespace lockstep
