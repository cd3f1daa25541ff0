// A barrier of ranks that are threads of one test.
#pragma once

#include <barrier>

namespace lockstep {

/// The place of one rank at a barrier. When it ends, also by an exception, the rank leaves the barrier: the others then
/// do not wait for it, and the test ends with the exception.
class PlaceAtBarrier {
 public:
  explicit PlaceAtBarrier(std::barrier<>& barrier) : barrier_(barrier) {}
  ~PlaceAtBarrier() { barrier_.arrive_and_drop(); }
  PlaceAtBarrier(const PlaceAtBarrier&) = delete;
  PlaceAtBarrier& operator=(const PlaceAtBarrier&) = delete;

  void wait() { barrier_.arrive_and_wait(); }

 private:
  std::barrier<>& barrier_;
};

}  // namespace lockstep
