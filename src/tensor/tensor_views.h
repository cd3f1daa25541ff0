// Tensors <-> the bytes of a safetensors file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <lockstep/storage/safetensors.h>
#include <lockstep/tensor/named_tensors.h>

namespace lockstep {

/// The tensor's dtype in a safetensors file. `file` and `name` are for the message. Throws: CheckpointError (a dtype
/// that safetensors does not support).
std::string saved_dtype(const at::Tensor& tensor, const std::string& file, const std::string& name);

/// Tensors in the form in which they are written; holds them in host memory.
struct TensorViews {
  /// `file` is for messages. Throws: CheckpointError (a dtype that safetensors does not support).
  TensorViews(const NamedTensors& tensors, const std::string& file);
  std::int64_t byte_size() const;  ///< without the header
  /// `tied_names`: other names of the tensors, as safetensors.torch.save_model() of Python writes them.
  void write(const std::function<void(std::span<const std::byte>)>& append,
             const std::map<std::string, std::string>& tied_names = {}) const;

  std::vector<TensorView> views{};
  std::vector<at::Tensor> held{};
};

/// The tensors of a safetensors file in `bytes` (uint8, on the CPU). Aligned tensors share the memory of `bytes`.
/// `file` is for messages. Throws: CheckpointError (not a safetensors file).
NamedTensors view_tensors(const at::Tensor& bytes, const std::string& file);

}  // namespace lockstep
