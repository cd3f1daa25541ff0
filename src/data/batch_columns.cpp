#include "data/batch_columns.h"

#include <iterator>
#include <string_view>
#include <utility>

namespace lockstep {

NamedTensors columns_of(const Batch& batch) {
  NamedTensors columns;
  for (const auto& [name, tensor] :
       {std::pair<const char*, at::Tensor>{"input", batch.input}, {"target", batch.target}, {"weight", batch.weight}}) {
    if (tensor.defined()) {
      columns.emplace_back(name, tensor);
    }
  }
  for (const auto& [name, tensor] : batch.fields) {
    columns.emplace_back("fields." + name, tensor);
  }
  return columns;
}

Batch batch_of(NamedTensors columns) {
  Batch batch;
  for (auto& [name, tensor] : columns) {
    if (name == "input") {
      batch.input = std::move(tensor);
    } else if (name == "target") {
      batch.target = std::move(tensor);
    } else if (name == "weight") {
      batch.weight = std::move(tensor);
    } else {
      batch.fields.emplace_back(name.substr(std::string_view("fields.").size()), std::move(tensor));
    }
  }
  return batch;
}

std::int64_t samples_of(const Batch& batch) {
  if (batch.samples != 0) {
    return batch.samples;
  }
  return batch.input.defined() && batch.input.dim() > 0 ? batch.input.size(0) : std::ssize(batch.ids);
}

}  // namespace lockstep
