#include "data/stacker.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>

#include "base/ceil_div.h"
#include "base/mapped.h"
#include "base/problems.h"
#include "data/for_each_tensor.h"
#include "tensor/shape_text.h"

namespace lockstep {

namespace {

std::int64_t padded_length(const std::vector<at::Tensor>& tensors, const Padding& padding, std::int64_t dimension) {
  std::int64_t longest = 0;
  for (const at::Tensor& tensor : tensors) {
    longest = std::max(longest, tensor.size(dimension));
  }
  return ceil_div(longest, padding.multiple_of) * padding.multiple_of;
}

at::Tensor mask_of(const std::vector<at::Tensor>& tensors, const Padding& padding, std::int64_t dimension) {
  const at::Tensor mask =
      at::zeros({static_cast<std::int64_t>(tensors.size()), padded_length(tensors, padding, dimension)},
                at::TensorOptions(at::kBool));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    mask.select(0, static_cast<std::int64_t>(i)).narrow(0, 0, tensors[i].size(dimension)).fill_(true);
  }
  return mask;
}

}  // namespace

/// The shapes are equal except for the padded dimensions.
bool Stacker::Column::fits(at::IntArrayRef shape) const {
  const at::IntArrayRef expected = tensors.front().sizes();
  if (shape.size() != expected.size()) {
    return false;
  }
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const bool is_padded = std::ranges::find(padded, static_cast<std::int64_t>(i), &Padded::dimension) != padded.end();
    if (shape[i] != expected[i] && !is_padded) {
      return false;
    }
  }
  return true;
}

at::Tensor Stacker::Column::stacked() const {
  if (!tensors.front().defined()) {
    return {};
  }
  if (padded.empty()) {
    return at::stack(tensors);
  }
  std::vector<std::int64_t> sizes = tensors.front().sizes().vec();
  for (const auto& [padding, dimension] : padded) {
    sizes[static_cast<std::size_t>(dimension)] = padded_length(tensors, *padding, dimension);
  }
  sizes.insert(sizes.begin(), std::ssize(tensors));
  const at::Tensor all = at::full(sizes, padded.front().padding->value, tensors.front().options());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor place = all.select(0, static_cast<std::int64_t>(i));
    for (const auto& [padding, dimension] : padded) {
      place = place.narrow(dimension, 0, tensors[i].size(dimension));
    }
    place.copy_(tensors[i]);
  }
  return all;
}

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
  if (ids_.size() == 1) {
    check_paddings_are_used();
  }
  has_extra_ = has_extra_ || sample.extra.has_value();
  extras_.push_back(std::move(sample.extra));
}

Batch Stacker::stacked() {
  Batch batch;
  batch.input = columns_[0].stacked();
  batch.target = columns_[1].stacked();
  batch.weight = columns_[2].stacked();
  for (std::size_t column = 3; column < columns_.size(); ++column) {
    batch.fields.emplace_back(columns_[column].name, columns_[column].stacked());
  }
  for (const Column& column : columns_) {
    for (const auto& [padding, dimension] : column.padded) {
      if (!padding->mask.empty()) {
        batch.fields.emplace_back(padding->mask, mask_of(column.tensors, *padding, dimension));
      }
    }
  }
  if (has_extra_) {
    batch.extra = std::move(extras_);
  }
  return batch;
}

void Stacker::add_column(const std::string& name, const at::Tensor& first) {
  Column& column = columns_.emplace_back();
  column.name = name;
  column.tensors.reserve(samples_);
  for (const Padding& padding : paddings_) {
    if (padding.field != name || !first.defined()) {
      continue;
    }
    const std::int64_t dimension = padding.dimension < 0 ? padding.dimension + first.dim() : padding.dimension;
    if (dimension < 0 || dimension >= first.dim()) {
      throw DataError(fmt::format("sample {}: found {} of shape {}, expected dimension {} to pad", ids_.front(), name,
                                  shape_text(first.sizes()), padding.dimension));
    }
    if (std::ranges::find(column.padded, dimension, &Padded::dimension) != column.padded.end()) {
      throw DataError(fmt::format("padding of '{}': dimension {} of shape {} is padded twice", name, dimension,
                                  shape_text(first.sizes())));
    }
    if (c10::isIntegralType(first.scalar_type(), /*includeBool=*/true) && padding.value != std::trunc(padding.value)) {
      throw DataError(fmt::format("padding of '{}': value is {}, expected a whole number for type {}", name,
                                  padding.value, c10::toString(first.scalar_type())));
    }
    column.padded.push_back({&padding, dimension});
  }
}

void Stacker::add_tensor(std::size_t position, const std::string& name, at::Tensor tensor) {
  if (ids_.size() == 1) {
    add_column(name, tensor);
  } else if (position >= columns_.size() || columns_[position].name != name) {
    throw DataError(
        fmt::format("sample {}: field '{}' is not at the same place in sample {}", ids_.back(), name, ids_.front()),
        "all samples of a batch must have the same fields in the same order");
  } else {
    check_same(ids_.back(), columns_[position], tensor);
  }
  columns_[position].tensors.push_back(std::move(tensor));
}

void Stacker::check_paddings_are_used() const {
  const auto find = [&](const std::string& name) { return std::ranges::find(columns_, name, &Column::name); };
  for (const Padding& padding : paddings_) {
    if (const auto column = find(padding.field); column == columns_.end() || !column->tensors.front().defined()) {
      throw DataError(fmt::format("sample {}: found no '{}' to pad", ids_.front(), padding.field),
                      "Padding::field is input, target, weight, or a field of the samples");
    }
    if (find(padding.mask) != columns_.end()) {
      throw DataError(fmt::format("sample {}: found a field '{}', which is the name of the mask of '{}'", ids_.front(),
                                  padding.mask, padding.field),
                      "set Padding::mask to another name");
    }
  }
}

void Stacker::check_same(std::int64_t id, const Column& column, const at::Tensor& found) const {
  const std::string& name = column.name;
  const at::Tensor& expected = column.tensors.front();
  if (found.defined() != expected.defined()) {
    throw DataError(fmt::format("sample {}: found {} {}, expected {} as in sample {}", id,
                                found.defined() ? "a tensor" : "no tensor", name, expected.defined() ? "one" : "none",
                                ids_.front()));
  }
  if (!found.defined()) {
    return;
  }
  if (!column.fits(found.sizes())) {
    const auto dimensions = mapped(column.padded, &Padded::dimension);
    throw DataError(
        fmt::format(
            "sample {}: found {} of shape {}, expected {}{} as in sample {}", id, name, shape_text(found.sizes()),
            shape_text(expected.sizes()),
            dimensions.empty() ? "" : fmt::format(" with any size of dimension {}", fmt::join(dimensions, " and ")),
            ids_.front()),
        dimensions.empty() ? "the samples of a batch are stacked: give them one shape, or pad them with padded()"
                           : "give the samples one size in the other dimensions, or pad these too");
  }
  if (found.scalar_type() != expected.scalar_type()) {
    throw DataError(fmt::format("sample {}: found {} of type {}, expected {} as in sample {}", id, name,
                                c10::toString(found.scalar_type()), c10::toString(expected.scalar_type()),
                                ids_.front()));
  }
}

Batch sample_of(const Batch& batch, std::int64_t index, std::int64_t samples) {
  Batch sample{.input = batch.input, .target = batch.target, .fields = batch.fields, .weight = batch.weight};
  for_each_tensor(sample, [&](at::Tensor& tensor) {
    if (tensor.dim() == 0 || tensor.size(0) != samples) {
      throw DataError(fmt::format("found a tensor of shape {} in a batch of {} samples, expected [{}, ...]",
                                  shape_text(tensor.sizes()), samples, samples),
                      "dimension 0 must be the samples");
    }
    tensor = tensor.select(0, index);
  });
  const auto position = static_cast<std::size_t>(index);
  if (const auto* extras = std::any_cast<std::vector<std::any>>(&batch.extra)) {
    if (std::ssize(*extras) != samples) {
      throw DataError(
          fmt::format("found {} values in `extra`, expected {}, one for each sample", extras->size(), samples));
    }
    sample.extra = std::any((*extras)[position]);
  } else if (samples == 1) {
    sample.extra = batch.extra;
  } else if (batch.extra.has_value()) {
    throw DataError(
        fmt::format("found one `extra` of a batch of {} samples, expected a std::vector<std::any>", samples));
  }
  if (!batch.ids.empty()) {
    sample.ids = {batch.ids.at(position)};
  }
  sample.samples = 1;
  return sample;
}

void check_paddings(std::span<const Padding> paddings) {
  std::vector<Problem> problems;
  for (auto padding = paddings.begin(); padding != paddings.end(); ++padding) {
    const std::span before(paddings.begin(), padding);
    if (padding->multiple_of < 1) {
      problems.push_back({fmt::format("padding of '{}': multiple_of is {}, expected 1 or more", padding->field,
                                      padding->multiple_of)});
    }
    if (const auto same = std::ranges::find(before, padding->field, &Padding::field);
        same != before.end() && same->value != padding->value) {
      problems.push_back({fmt::format("padding of '{}': found the values {} and {}, expected one for all dimensions",
                                      padding->field, same->value, padding->value)});
    }
    if (!padding->mask.empty() && std::ranges::find(before, padding->mask, &Padding::mask) != before.end()) {
      problems.push_back(
          {fmt::format("padding of '{}': another mask is called '{}' too", padding->field, padding->mask),
           "set Padding::mask to another name"});
    }
  }
  throw_if_any(std::move(problems));
}

}  // namespace lockstep
