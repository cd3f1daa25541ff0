#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/mapped.h"
#include "base/text.h"
#include "tensor/find_tensor.h"

namespace lockstep {

const at::Tensor* find_tensor(const NamedTensors& tensors, std::string_view name) {
  const auto found = std::ranges::find(tensors, name, &NamedTensors::value_type::first);
  return found == tensors.end() ? nullptr : &found->second;
}

std::string known_names(const NamedTensors& tensors) {
  const auto names = mapped(tensors, &NamedTensors::value_type::first);
  return names.empty() ? std::string("there are none") : printable("use one of " + join_first(names, 10));
}

const at::Tensor& tensor_of(const NamedTensors& tensors, std::string_view name) {
  if (const at::Tensor* tensor = find_tensor(tensors, name)) {
    return *tensor;
  }
  throw Error(fmt::format("found no tensor '{}'", printable(name)), known_names(tensors));
}

at::Tensor tensor_of(NamedTensors&& tensors, std::string_view name) { return tensor_of(std::as_const(tensors), name); }

}  // namespace lockstep
