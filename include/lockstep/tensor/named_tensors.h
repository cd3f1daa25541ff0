// lockstep/tensor/named_tensors.h
//
// The value type that data, parallel, optim and checkpoint exchange.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Ordered names and tensors.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// The tensor of this name; the first, if several have it. Throws: Error naming those that exist.
const at::Tensor& tensor_of(const NamedTensors& tensors, std::string_view name);
at::Tensor tensor_of(NamedTensors&& tensors, std::string_view name);  ///< of a temporary

}  // namespace lockstep
