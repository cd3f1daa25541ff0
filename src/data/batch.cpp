#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/data/batch.h>

#include "base/text.h"
#include "data/for_each_tensor.h"
#include "tensor/find_tensor.h"

namespace lockstep {

const at::Tensor& Batch::operator[](std::string_view name) const& {
  if (const at::Tensor* field = find_tensor(fields, name)) {
    return *field;
  }
  throw DataError(fmt::format("batch: found no field '{}'", printable(name)),
                  known_names(fields) + "; the data set names them; input, target and weight are members of Batch");
}

at::Tensor Batch::operator[](std::string_view name) && { return std::as_const(*this)[name]; }

bool Batch::has(std::string_view name) const { return find_tensor(fields, name) != nullptr; }

Batch Batch::to(c10::Device device, bool non_blocking) const {
  // A copy to the host must be synchronous, or it could be read before the data arrive.
  const bool ahead = non_blocking && !device.is_cpu();
  Batch moved = *this;
  for_each_tensor(moved, [&](at::Tensor& tensor) { tensor = tensor.to(device, tensor.scalar_type(), ahead); });
  return moved;
}

}  // namespace lockstep
