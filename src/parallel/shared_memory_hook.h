// Gradients of ranks on the CPUs of one machine, reduced in memory that they share (--backend shm, or auto).
#pragma once

#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include "ipc/shared_reduction.h"

namespace lockstep {

class World;

/// The dense buckets lie in the shared memory, see Note [Shared reduction]. A bucket is published as soon as the
/// backward has computed it, and finished at the end of the backward: until then the rank has work of its own. The
/// means have the same bytes on every rank. Sparse buckets go through the process group.
class SharedMemoryHook final : public c10d::CommHookInterface {
 public:
  /// Collective. Moves the dense ones of `buckets`, which are all of the reducer, to the shared memory. If a rank
  /// cannot have it, `world` leaves shared memory, and every rank gets nullptr. Throws: CommError, on every rank, if it
  /// may not.
  static std::unique_ptr<SharedMemoryHook> make(World& world, const std::vector<c10d::GradBucket>& buckets);

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

  /// `finishes_at_once`: the reducer waits for each bucket itself. Throws: Error if the backward before has failed.
  void begin_backward(bool finishes_at_once);
  /// Call it when this rank's part of a backward is done, before the reducer waits. Throws: c10::DistBackendError.
  void finish();

 private:
  SharedMemoryHook(c10::intrusive_ptr<c10d::ProcessGroup> group, std::unique_ptr<SharedReduction> reduction,
                   const std::vector<c10d::GradBucket>& buckets);

  struct Pending {
    at::Tensor bucket{};
    c10::intrusive_ptr<c10::ivalue::Future> done{};
  };

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const std::unique_ptr<SharedReduction> reduction_;
  std::vector<Pending> pending_{};
  bool finishes_at_once_ = false;
};

}  // namespace lockstep
