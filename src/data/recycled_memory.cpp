#include "data/recycled_memory.h"

#include <atomic>
#include <cstddef>

#include <ATen/ATen.h>

namespace lockstep {

at::Tensor RecycledMemory::take(at::IntArrayRef sizes, at::ScalarType type) {
  constexpr std::size_t kMostStorages = 64;
  const std::size_t bytes = static_cast<std::size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  const auto is_free = [](const c10::Storage& storage) { return storage.use_count() == 1; };
  const std::lock_guard lock(mutex_);
  for (const c10::Storage& storage : storages_) {
    if (is_free(storage) && storage.nbytes() >= bytes && storage.nbytes() / 2 <= bytes) {
      std::atomic_thread_fence(std::memory_order_acquire);  // after the reads of the previous holder
      return at::empty({0}, type).set_(storage, 0, sizes, c10::contiguous_strides(sizes));
    }
  }
  const at::Tensor tensor = at::empty(sizes, type);
  if (storages_.size() == kMostStorages) {
    std::erase_if(storages_, is_free);  // of a size that is not in use
  }
  if (storages_.size() < kMostStorages) {
    storages_.push_back(tensor.storage());
  }
  return tensor;
}

}  // namespace lockstep
