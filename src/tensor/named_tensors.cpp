#include <algorithm>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/tensor/named_tensors.h>

#include "base/mapped.h"
#include "base/text.h"

namespace lockstep {

const at::Tensor& tensor_of(const NamedTensors& tensors, std::string_view name) {
  const auto found = std::ranges::find(tensors, name, &NamedTensors::value_type::first);
  if (found != tensors.end()) {
    return found->second;
  }
  const auto names = mapped(tensors, &NamedTensors::value_type::first);
  throw Error(fmt::format("found no tensor '{}'", name),
              names.empty() ? std::string("there are none") : "use one of " + join_first(names, 10));
}

}  // namespace lockstep
