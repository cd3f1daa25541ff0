#include <algorithm>
#include <any>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/data/dataset.h>

#include "base/crc32c.h"
#include "data/sample_error.h"

namespace lockstep {

namespace {

/// The finalizer of splitmix64 (Steele, Lea, Flood 2014) after its increment.
constexpr std::uint64_t splitmix(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

void check_ids(std::string_view what, std::span<const std::int64_t> ids, std::int64_t size) {
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= size) {
      throw DataError(fmt::format("{}: found sample id {}, expected 0 to {}", what, id, size - 1));
    }
  }
}

template <typename T>
std::uint32_t crc_of(std::span<const T> values) {
  return crc32c(std::as_bytes(values));
}

/// ", input [1000, 10] Float 1a2b3c4d": of the first and the last row, so that it costs the same for any size.
std::string describe_rows(std::string_view name, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  const std::int64_t rows = tensor.size(0);
  const at::Tensor ends =
      at::cat({tensor.narrow(0, 0, std::min<std::int64_t>(rows, 1)),
               tensor.narrow(0, std::max<std::int64_t>(rows - 1, 0), std::min<std::int64_t>(rows, 1))})
          .cpu()
          .contiguous();
  const std::span bytes(static_cast<const std::byte*>(ends.const_data_ptr()), ends.nbytes());
  return fmt::format(", {} [{}] {} {:08x}", name, fmt::join(tensor.sizes(), ", "), c10::toString(tensor.scalar_type()),
                     crc_of(bytes));
}

class TensorDataset final : public Dataset {
 public:
  TensorDataset(const at::Tensor& input, const at::Tensor& target)
      : input_(input.detach()), target_(target.defined() ? target.detach() : target) {}

  std::int64_t size() const override { return input_.size(0); }

  Batch get(std::span<const std::int64_t> ids, const SampleSeed&) const override {
    check_ids("tensor data set", ids, size());
    const at::Tensor rows = at::tensor(at::IntArrayRef(ids.data(), ids.size()));
    return {.input = select(input_, rows), .target = target_.defined() ? select(target_, rows) : at::Tensor()};
  }

  std::string fingerprint() const override {
    return Dataset::fingerprint() + describe_rows("input", input_) + describe_rows("target", target_);
  }

 private:
  static at::Tensor select(const at::Tensor& tensor, const at::Tensor& rows) {
    return tensor.index_select(0, rows.to(tensor.device()));
  }

  at::Tensor input_;
  at::Tensor target_;
};

/// Collects samples of one structure and stacks them.
class Stacker {
 public:
  explicit Stacker(std::size_t samples) : samples_(samples) {}

  void add(std::int64_t id, Batch sample) {
    ids_.push_back(id);
    std::size_t column = 0;
    add_tensor(column++, "input", std::move(sample.input));
    add_tensor(column++, "target", std::move(sample.target));
    add_tensor(column++, "weight", std::move(sample.weight));
    for (auto& [name, tensor] : sample.fields) {
      add_tensor(column++, name, std::move(tensor));
    }
    if (column < columns_.size()) {
      throw DataError(fmt::format("sample {}: found no field '{}', expected it as in sample {}", id,
                                  columns_[column].name, ids_.front()));
    }
    has_extra_ = has_extra_ || sample.extra.has_value();
    extras_.push_back(std::move(sample.extra));
  }

  Batch stacked() {
    Batch batch;
    batch.input = stack(columns_[0]);
    batch.target = stack(columns_[1]);
    batch.weight = stack(columns_[2]);
    for (std::size_t column = 3; column < columns_.size(); ++column) {
      batch.fields.emplace_back(columns_[column].name, stack(columns_[column]));
    }
    if (has_extra_) {
      batch.extra = std::move(extras_);
    }
    return batch;
  }

 private:
  struct Column {
    std::string name{};
    std::vector<at::Tensor> tensors{};
  };

  void add_tensor(std::size_t position, const std::string& name, at::Tensor tensor) {
    const std::int64_t id = ids_.back();
    const bool first_sample = ids_.size() == 1;
    if (first_sample) {
      columns_.emplace_back().name = name;
      columns_.back().tensors.reserve(samples_);
    } else if (position >= columns_.size() || columns_[position].name != name) {
      throw DataError(
          fmt::format("sample {}: found field '{}', expected the fields of sample {}", id, name, ids_.front()),
          "samples of one batch have the same fields in the same order");
    }
    Column& column = columns_[position];
    if (!first_sample) {
      check_same(id, name, tensor, column.tensors.front());
    }
    column.tensors.push_back(std::move(tensor));
  }

  void check_same(std::int64_t id, const std::string& name, const at::Tensor& found, const at::Tensor& expected) const {
    if (found.defined() != expected.defined()) {
      throw DataError(fmt::format("sample {}: found {} {}, expected {} as in sample {}", id,
                                  found.defined() ? "a tensor" : "no tensor", name, expected.defined() ? "one" : "none",
                                  ids_.front()));
    }
    if (!found.defined()) {
      return;
    }
    if (found.sizes() != expected.sizes()) {
      throw DataError(fmt::format("sample {}: found {} of shape [{}], expected [{}] as in sample {}", id, name,
                                  fmt::join(found.sizes(), ", "), fmt::join(expected.sizes(), ", "), ids_.front()),
                      "samples of one batch are stacked: pad them to one shape, or write a Dataset whose get() does");
    }
    if (found.scalar_type() != expected.scalar_type()) {
      throw DataError(fmt::format("sample {}: found {} of type {}, expected {} as in sample {}", id, name,
                                  c10::toString(found.scalar_type()), c10::toString(expected.scalar_type()),
                                  ids_.front()));
    }
  }

  static at::Tensor stack(const Column& column) {
    return column.tensors.front().defined() ? at::stack(column.tensors) : at::Tensor();
  }

  std::size_t samples_;
  std::vector<std::int64_t> ids_{};
  std::vector<Column> columns_{};
  std::vector<std::any> extras_{};
  bool has_extra_ = false;
};

class SampleDataset final : public Dataset {
 public:
  SampleDataset(std::int64_t size, std::function<Batch(std::int64_t, std::uint64_t)> get)
      : size_(size), get_(std::move(get)) {}

  std::int64_t size() const override { return size_; }

  Batch get(std::span<const std::int64_t> ids, const SampleSeed& seed) const override {
    Stacker stacker(ids.size());
    for (const std::int64_t id : ids) {
      stacker.add(id, sample(id, seed(id)));
    }
    return stacker.stacked();
  }

 private:
  Batch sample(std::int64_t id, std::uint64_t seed) const {
    try {
      return get_(id, seed);
    } catch (const Error& error) {
      throw DataError(fmt::format("sample {}: {}", id, error.what()), error.hint());
    } catch (const std::exception& error) {
      throw sample_error(fmt::format("sample {}", id), error);
    }
  }

  std::int64_t size_;
  std::function<Batch(std::int64_t, std::uint64_t)> get_;
};

class Subset final : public Dataset {
 public:
  Subset(std::shared_ptr<const Dataset> data, std::vector<std::int64_t> ids)
      : data_(std::move(data)), ids_(std::move(ids)) {
    check_ids("subset", ids_, data_->size());
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(ids_.size()); }

  Batch get(std::span<const std::int64_t> ids, const SampleSeed& seed) const override {
    check_ids("subset", ids, size());
    std::vector<std::int64_t> mapped;
    mapped.reserve(ids.size());
    for (const std::int64_t id : ids) {
      mapped.push_back(ids_[static_cast<std::size_t>(id)]);
    }
    return data_->get(mapped, seed);
  }

  std::string fingerprint() const override {
    return fmt::format("{} ({:08x}) of {}", Dataset::fingerprint(), crc_of(std::span<const std::int64_t>(ids_)),
                       data_->fingerprint());
  }

 private:
  std::shared_ptr<const Dataset> data_;
  std::vector<std::int64_t> ids_;
};

void check_has_rows(std::string_view name, const at::Tensor& tensor) {
  if (tensor.dim() == 0) {
    throw DataError(fmt::format("tensor data set: found {} of shape [], expected [N, ...]", name),
                    "dimension 0 counts the samples");
  }
}

}  // namespace

std::string Dataset::fingerprint() const { return fmt::format("{} samples", size()); }

std::uint64_t SampleSeed::operator()(std::int64_t sample) const noexcept {
  const std::uint64_t of_epoch = splitmix(splitmix(seed) ^ static_cast<std::uint64_t>(epoch));
  return splitmix(of_epoch ^ static_cast<std::uint64_t>(sample));
}

std::shared_ptr<Dataset> tensor_dataset(at::Tensor input, at::Tensor target) {
  if (!input.defined()) {
    throw DataError("tensor data set: found no input, expected a tensor of shape [N, ...]");
  }
  check_has_rows("input", input);
  if (target.defined()) {
    check_has_rows("target", target);
    if (target.size(0) != input.size(0)) {
      throw DataError(fmt::format("tensor data set: found {} targets, expected {}, one for each row of input",
                                  target.size(0), input.size(0)));
    }
  }
  return std::make_shared<TensorDataset>(input, target);
}

std::shared_ptr<Dataset> sample_dataset(std::int64_t size,
                                        std::function<Batch(std::int64_t id, std::uint64_t seed)> get) {
  if (size < 0) {
    throw DataError(fmt::format("sample data set: found size {}, expected 0 or more", size));
  }
  if (!get) {
    throw DataError("sample data set: found an empty function, expected one that makes a sample");
  }
  return std::make_shared<SampleDataset>(size, std::move(get));
}

std::shared_ptr<Dataset> subset(std::shared_ptr<const Dataset> data, std::vector<std::int64_t> ids) {
  if (!data) {
    throw DataError("subset: found no data set, expected one");
  }
  return std::make_shared<Subset>(std::move(data), std::move(ids));
}

}  // namespace lockstep
