// data/recycled_memory.h
#pragma once

#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace lockstep {

/// CPU tensors for batches, in memory of earlier ones that nobody holds any more: fresh pages cost more than filling
/// them. Thread-safe.
class RecycledMemory {
 public:
  /// Uninitialised and contiguous. Its memory is not used again while any tensor or view of it lives.
  at::Tensor take(at::IntArrayRef sizes, at::ScalarType type);

 private:
  std::mutex mutex_;
  std::vector<c10::Storage> storages_{};
};

}  // namespace lockstep
