// Complex and sparse numbers as dense real ones.
#pragma once

#include <ATen/ATen.h>

namespace lockstep {

/// Its elements as dense real numbers for which LibTorch has reductions. `tensor`: of floating-point or complex
/// numbers.
inline at::Tensor real_numbers(at::Tensor tensor) {
  if (tensor.layout() != at::kStrided) {
    tensor = tensor.to_dense();
  }
  if (tensor.is_complex()) {
    tensor = at::view_as_real(tensor.resolve_conj());
  }
  return c10::isFloat8Type(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
}

}  // namespace lockstep
