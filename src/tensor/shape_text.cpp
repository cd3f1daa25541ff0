#include "tensor/shape_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <c10/core/ScalarType.h>

namespace lockstep {

std::string shape_text(at::IntArrayRef sizes) { return fmt::format("[{}]", fmt::join(sizes, ", ")); }

std::string kind_text(const at::Tensor& tensor) {
  return fmt::format("{} {}", c10::toString(tensor.scalar_type()), shape_text(tensor.sizes()));
}

}  // namespace lockstep
