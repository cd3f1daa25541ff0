#include "data/stacker.h"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>

namespace lockstep {

namespace {

at::Tensor stack(const std::vector<at::Tensor>& tensors) {
  return tensors.front().defined() ? at::stack(tensors) : at::Tensor();
}

}  // namespace

void Stacker::add(std::int64_t id, Batch sample) {
  ids_.push_back(id);
  std::size_t column = 0;
  add_tensor(column++, "input", std::move(sample.input));
  add_tensor(column++, "target", std::move(sample.target));
  add_tensor(column++, "weight", std::move(sample.weight));
  for (auto& [name, tensor] : sample.fields) {
    add_tensor(column++, name, std::move(tensor));
  }
  if (column < columns_.size()) {
    throw DataError(
        fmt::format("sample {}: no field '{}', but sample {} has it", id, columns_[column].name, ids_.front()));
  }
  has_extra_ = has_extra_ || sample.extra.has_value();
  extras_.push_back(std::move(sample.extra));
}

Batch Stacker::stacked() {
  Batch batch;
  batch.input = stack(columns_[0].tensors);
  batch.target = stack(columns_[1].tensors);
  batch.weight = stack(columns_[2].tensors);
  for (std::size_t column = 3; column < columns_.size(); ++column) {
    batch.fields.emplace_back(columns_[column].name, stack(columns_[column].tensors));
  }
  if (has_extra_) {
    batch.extra = std::move(extras_);
  }
  return batch;
}

void Stacker::add_tensor(std::size_t position, const std::string& name, at::Tensor tensor) {
  const std::int64_t id = ids_.back();
  const bool first_sample = ids_.size() == 1;
  if (first_sample) {
    columns_.emplace_back().name = name;
    columns_.back().tensors.reserve(samples_);
  } else if (position >= columns_.size() || columns_[position].name != name) {
    throw DataError(fmt::format("sample {}: field '{}' is not at the same place in sample {}", id, name, ids_.front()),
                    "all samples of a batch must have the same fields in the same order");
  }
  Column& column = columns_[position];
  if (!first_sample) {
    check_same(id, name, tensor, column.tensors.front());
  }
  column.tensors.push_back(std::move(tensor));
}

void Stacker::check_same(std::int64_t id, const std::string& name, const at::Tensor& found,
                         const at::Tensor& expected) const {
  if (found.defined() != expected.defined()) {
    throw DataError(fmt::format("sample {}: found {} {}, expected {} as in sample {}", id,
                                found.defined() ? "a tensor" : "no tensor", name, expected.defined() ? "one" : "none",
                                ids_.front()));
  }
  if (!found.defined()) {
    return;
  }
  if (found.sizes() != expected.sizes()) {
    throw DataError(
        fmt::format("sample {}: found {} of shape [{}], expected [{}] as in sample {}", id, name,
                    fmt::join(found.sizes(), ", "), fmt::join(expected.sizes(), ", "), ids_.front()),
        "the samples of a batch are stacked: pad them to one shape, or write a Dataset whose get() pads them");
  }
  if (found.scalar_type() != expected.scalar_type()) {
    throw DataError(fmt::format("sample {}: found {} of type {}, expected {} as in sample {}", id, name,
                                c10::toString(found.scalar_type()), c10::toString(expected.scalar_type()),
                                ids_.front()));
  }
}

}  // namespace lockstep
