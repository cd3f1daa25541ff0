// Copies of a checkpoint's contents in the memory of the host, for a save in the background.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/checkpoint/checkpoint_store.h>

namespace lockstep {

/// Places of tensors in blocks of page-locked memory.
struct PinnedLayout {
  struct Place {
    std::size_t block = 0;
    std::int64_t offset = 0;
  };
  std::vector<std::int64_t> blocks{};  ///< their sizes: powers of two, because LibTorch's allocator rounds up to them
  std::vector<Place> places{};         ///< one for each size
};

/// Packs tensors of these sizes in bytes into few blocks with little unused space. A block for each tensor could take
/// twice the memory. Pure.
PinnedLayout pack_pinned(std::span<const std::int64_t> sizes);

/// The memory is kept for the next save, which finds tensors of the same shapes.
class HostCopies {
 public:
  /// Waits until everything is copied. The copies are valid until the next call.
  const CheckpointContents& take(const CheckpointContents& live);

 private:
  void make_room(const CheckpointContents& live);

  CheckpointContents copies_{};
};

}  // namespace lockstep
