// Visits the tensors of a batch.
#pragma once

#include <lockstep/data/batch.h>

namespace lockstep {

/// Calls `visit(tensor)` for every tensor of the batch. `AnyBatch`: Batch, or const Batch for constant tensors.
template <typename AnyBatch, typename Visit>
void for_each_tensor(AnyBatch& batch, const Visit& visit) {
  const auto visit_defined = [&](auto& tensor) {
    if (tensor.defined()) {
      visit(tensor);
    }
  };
  visit_defined(batch.input);
  visit_defined(batch.target);
  for (auto& [name, tensor] : batch.fields) {
    visit_defined(tensor);
  }
  visit_defined(batch.weight);
}

}  // namespace lockstep
