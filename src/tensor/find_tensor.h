// Tensors by name.
#pragma once

#include <string>
#include <string_view>

#include <lockstep/tensor/named_tensors.h>

namespace lockstep {

/// nullptr: there is none of this name.
const at::Tensor* find_tensor(const NamedTensors& tensors, std::string_view name);

/// For the hint if there is none: "use one of ids, output", or "there are none".
std::string known_names(const NamedTensors& tensors);

}  // namespace lockstep
