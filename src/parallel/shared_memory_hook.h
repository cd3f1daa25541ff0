// Gradients of ranks on the CPUs of one machine, reduced in memory that they share (--backend shm, or auto).
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "ipc/shared_reduction.h"

namespace lockstep {

class World;

/// How gradients of a dtype are added. Throws: Error (a dtype that cannot be).
WriteMean write_mean_of(at::ScalarType type);

/// The dense buckets lie in the shared memory, see Note [Shared reduction]. A bucket is published as soon as the
/// backward has computed it. The reducer does not wait for it: it only makes views of the bucket, and it may wait
/// within the backward, if a function of the program runs a backward inside of its backward, while the rank has work of
/// its own. finish() waits, after the backward. The means have the same bytes on every rank. Sparse buckets go through
/// the process group.
class SharedMemoryHook final : public c10d::CommHookInterface {
 public:
  /// Collective. Moves the dense ones of `buckets`, which are all of the reducer, to the shared memory. If a rank
  /// cannot have it, `world` leaves shared memory, and every rank gets nullptr. Throws: CommError, on every rank, if it
  /// may not.
  static std::unique_ptr<SharedMemoryHook> make(World& world, const std::vector<c10d::GradBucket>& buckets);

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

  /// Throws: Error if the backward before has failed.
  void begin_backward() const;
  /// Call it after each backward: then the buckets have the means. Throws: c10::DistBackendError.
  void finish();

 private:
  SharedMemoryHook(c10::intrusive_ptr<c10d::ProcessGroup> group, std::unique_ptr<SharedReduction> reduction,
                   const std::vector<c10d::GradBucket>& buckets);

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const std::unique_ptr<SharedReduction> reduction_;
  std::size_t next_ = 0;  // bucket of this backward; not GradBucket::getIndex(), see BucketHook::runHook()
};

}  // namespace lockstep
