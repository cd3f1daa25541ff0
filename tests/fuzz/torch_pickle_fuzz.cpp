#include <lockstep/base/error.h>

#include "fuzz/target.h"
#include "storage/torch_pickle.h"

namespace lockstep::fuzz {

/// Every element of an accepted tensor is inside of its storage.
LOCKSTEP_FUZZ_TARGET(torch_pickle) {
  for (const char* key : {"", "model"}) {
    try {
      for (const PickledTensor& tensor : parse_torch_pickle(input, key)) {
        promise(tensor.shape.size() == tensor.strides.size() && tensor.offset >= 0, "strides for the shape", input);
        std::int64_t last = tensor.offset;
        bool is_empty = false;
        for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
          promise(tensor.shape[i] >= 0 && tensor.strides[i] >= 0, "sizes that are not negative", input);
          is_empty = is_empty || tensor.shape[i] == 0;
          last += is_empty ? 0 : (tensor.shape[i] - 1) * tensor.strides[i];
        }
        promise(is_empty || last < tensor.storage_bytes, "elements inside of the storage", input);
      }
    } catch (const CheckpointError&) {
    }
  }
}

}  // namespace lockstep::fuzz
