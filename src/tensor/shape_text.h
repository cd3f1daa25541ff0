// Shapes of tensors in messages and fingerprints.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep {

std::string shape_text(at::IntArrayRef sizes);    ///< "[2, 3]"
std::string kind_text(const at::Tensor& tensor);  ///< "Float [2, 3]"

}  // namespace lockstep
