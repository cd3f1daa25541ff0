// The tensors of a file of torch.save, as the pickle in its record data.pkl describes them. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// A tensor as a view of a storage. All its elements are inside of the storage.
struct PickledTensor {
  std::string name{};
  std::string_view dtype{};        ///< in Python's spelling: "float32"
  std::string storage{};           ///< its bytes are the record data/<storage>
  std::int64_t storage_bytes = 0;  ///< of the whole storage
  std::int64_t offset = 0;         ///< of the first element, in elements
  std::vector<std::int64_t> shape{};
  std::vector<std::int64_t> strides{};  ///< in elements
};

/// The tensors of the dictionary under `key`, in its order. Without a key: of the whole content if it is a dictionary
/// of tensors, otherwise of its only entry that is one. Throws: CheckpointError.
std::vector<PickledTensor> parse_torch_pickle(std::string_view pickle, const std::string& key);

}  // namespace lockstep
