// data/for_each_tensor.h
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

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

/// Memory belongs to the stream on which it was made. From now on it is used by `stream` too.
inline void keep_for(const c10::Stream& stream, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device() != stream.device()) {
    return;
  }
  if (tensor.is_sparse()) {
    keep_for(stream, tensor._indices());
    keep_for(stream, tensor._values());
  } else {
    tensor.record_stream(stream);
  }
}

}  // namespace lockstep
