// Tensors as the bytes of a safetensors file, and back.
#pragma once

#include <string>
#include <vector>

#include <lockstep/storage/safetensors.h>
#include <lockstep/world/named_tensors.h>

namespace lockstep {

/// Tensors as they are written; keeps them in host memory.
struct TensorViews {
  /// `file` is for messages. Throws: CheckpointError (a dtype that safetensors lacks).
  TensorViews(const NamedTensors& tensors, const std::string& file);
  std::int64_t byte_size() const;  ///< without the header
  void write(const std::function<void(std::span<const std::byte>)>& append) const;

  std::vector<TensorView> views{};
  std::vector<at::Tensor> held{};
};

/// The tensors of a safetensors file that lies in `bytes` (uint8, on the CPU), sharing its memory where they are
/// aligned. `file` is for messages. Throws: CheckpointError (not a safetensors file; a dtype that LibTorch lacks).
NamedTensors view_tensors(const at::Tensor& bytes, const std::string& file);

}  // namespace lockstep
