#include "tensor/tensor_layout.h"

#include <cstdint>
#include <vector>

#include <ATen/ops/empty.h>

namespace lockstep {

Json tensor_layout(const NamedTensors& tensors) {
  Json layout = Json::array();
  for (const auto& [name, tensor] : tensors) {
    layout.push_back({{"name", exact_json(name)},
                      {"dtype", static_cast<int>(tensor.scalar_type())},
                      {"shape", tensor.sizes().vec()}});
  }
  return layout;
}

NamedTensors empty_tensors(const Json& layout, c10::Device device) {
  NamedTensors tensors;
  for (const Json& entry : layout) {
    const auto dtype = static_cast<at::ScalarType>(entry.at("dtype").get<int>());
    tensors.emplace_back(
        exact_text(entry.at("name"), "name"),
        at::empty(entry.at("shape").get<std::vector<std::int64_t>>(), at::device(device).dtype(dtype)));
  }
  return tensors;
}

}  // namespace lockstep
