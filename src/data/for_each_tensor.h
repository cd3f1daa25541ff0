// data/for_each_tensor.h
#pragma once

#include <lockstep/data/batch.h>

namespace lockstep {

/// Calls `visit(at::Tensor&)` for every tensor of the batch.
template <typename Visit>
void for_each_tensor(Batch& batch, const Visit& visit) {
  const auto visit_defined = [&](at::Tensor& tensor) {
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
