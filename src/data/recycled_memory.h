// Memory of earlier batches for new ones.
#pragma once

#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace lockstep {

/// CPU tensors for batches in the memory of earlier batches that are no longer used: fresh pages cost more than filling
/// them. Thread-safe.
class RecycledMemory {
 public:
  /// Uninitialised and contiguous. Its memory is not reused while a tensor or view of it exists.
  at::Tensor take(at::IntArrayRef sizes, at::ScalarType type);

 private:
  std::mutex mutex_;
  std::vector<c10::Storage> storages_{};
};

}  // namespace lockstep
