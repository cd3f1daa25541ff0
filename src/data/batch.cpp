#include <algorithm>
#include <string>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/data/batch.h>

#include "data/for_each_tensor.h"

namespace lockstep {

namespace {

const at::Tensor* find_field(const NamedTensors& fields, std::string_view name) {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const auto& field) { return field.first == name; });
  return found == fields.end() ? nullptr : &found->second;
}

}  // namespace

const at::Tensor& Batch::operator[](std::string_view name) const {
  if (const at::Tensor* field = find_field(fields, name)) {
    return *field;
  }
  std::string names;
  for (const auto& [known, tensor] : fields) {
    names += (names.empty() ? "" : ", ") + known;
  }
  throw DataError(fmt::format("batch: no field '{}'; its fields are: {}", name, names.empty() ? "(none)" : names),
                  "the data set names the fields; input, target and weight are members of Batch");
}

bool Batch::has(std::string_view name) const { return find_field(fields, name) != nullptr; }

Batch Batch::to(c10::Device device, bool non_blocking) const {
  // A copy to the host must be synchronous, or it could be read before the data arrive.
  const bool ahead = non_blocking && !device.is_cpu();
  Batch moved = *this;
  for_each_tensor(moved, [&](at::Tensor& tensor) { tensor = tensor.to(device, tensor.scalar_type(), ahead); });
  return moved;
}

}  // namespace lockstep
