// lockstep/tensor/named_tensors.h
//
// The value type that data, parallel, optim and checkpoint exchange.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Ordered names and tensors.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

}  // namespace lockstep
