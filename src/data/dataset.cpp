#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/data/dataset.h>
#include <lockstep/data/file_datasets.h>

#include "base/crc32c.h"
#include "base/mapped.h"
#include "base/splitmix.h"
#include "data/batch_columns.h"
#include "data/gather_rows.h"
#include "data/sample_error.h"
#include "data/stacker.h"
#include "tensor/shape_text.h"
#include "tensor/tensor_bytes.h"

namespace lockstep {

namespace {

/// ", input [1000, 10] Float 1a2b3c4d": hashes only the first and the last row, so that the cost does not depend on the
/// size.
std::string describe_rows(std::string_view name, const at::Tensor& tensor) {
  const std::int64_t rows = tensor.size(0);
  const at::Tensor ends =
      at::cat({tensor.narrow(0, 0, std::min<std::int64_t>(rows, 1)),
               tensor.narrow(0, std::max<std::int64_t>(rows - 1, 0), std::min<std::int64_t>(rows, 1))})
          .cpu()
          .contiguous();
  return fmt::format(", {} {} {} {:08x}", name, shape_text(tensor.sizes()), c10::toString(tensor.scalar_type()),
                     crc32c(bytes_of(ends)));
}

class TensorDataset final : public Dataset {
 public:
  /// `scale`: of `input`; 0: none.
  TensorDataset(NamedTensors columns, float scale) : columns_(std::move(columns)), scale_(scale) {
    for (auto& [name, rows] : columns_) {  // rows are copied as bytes, so the memory must have the values
      rows = rows.detach().resolve_conj().resolve_neg();
    }
  }

  std::int64_t size() const override { return columns_.front().second.size(0); }

  Batch get(std::span<const std::int64_t> ids, const SampleSeed&) const override {
    check_ids("tensor data set", ids, size());
    NamedTensors picked;
    picked.reserve(columns_.size());
    for (const auto& [name, rows] : columns_) {
      picked.emplace_back(name, gather_rows(rows, ids, memory_, name == "input" ? scale_ : 0));
    }
    return batch_of(std::move(picked));
  }

  std::string fingerprint() const override {
    std::string text = Dataset::fingerprint();
    for (const auto& [name, rows] : columns_) {
      text += describe_rows(name, rows);
    }
    return text;
  }

 private:
  NamedTensors columns_;
  float scale_;
  mutable RecycledMemory memory_{};
};

class SampleDataset final : public Dataset {
 public:
  SampleDataset(std::int64_t size, std::function<Batch(std::int64_t, std::uint64_t)> get, std::string name)
      : size_(size), get_(std::move(get)), name_(std::move(name)) {}

  std::int64_t size() const override { return size_; }
  std::string fingerprint() const override {
    return name_.empty() ? Dataset::fingerprint() : fmt::format("{} of {}", Dataset::fingerprint(), name_);
  }

  Batch get(std::span<const std::int64_t> ids, const SampleSeed& seed) const override {
    check_ids("sample data set", ids, size_);
    Stacker stacker(ids.size());
    for (const std::int64_t id : ids) {
      stacker.add(id, with_sample_names({&id, 1}, [&] { return get_(id, seed(id)); }));
    }
    return stacker.stacked();
  }

 private:
  std::int64_t size_;
  std::function<Batch(std::int64_t, std::uint64_t)> get_;
  std::string name_;
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
    Batch batch = data_->get(mapped(ids, [&](std::int64_t id) { return ids_[static_cast<std::size_t>(id)]; }), seed);
    batch.ids.clear();  // numbers in the other data set; the loader sets those of this one
    return batch;
  }

  std::string fingerprint() const override {
    return fmt::format("{} ({:08x}) of {}", Dataset::fingerprint(), crc32c(std::as_bytes(std::span(ids_))),
                       data_->fingerprint());
  }

 private:
  std::shared_ptr<const Dataset> data_;
  std::vector<std::int64_t> ids_;
};

class Concat final : public Dataset {
 public:
  explicit Concat(std::vector<std::shared_ptr<const Dataset>> parts) : parts_(std::move(parts)) {
    for (const auto& part : parts_) {
      begins_.push_back(begins_.back() + part->size());
    }
  }

  std::int64_t size() const override { return begins_.back(); }

  Batch get(std::span<const std::int64_t> ids, const SampleSeed& seed) const override {
    check_ids("concat", ids, size());
    std::vector<std::vector<std::int64_t>> of_parts(parts_.size());
    for (const std::int64_t id : ids) {
      const std::size_t part = part_of(id);
      of_parts[part].push_back(id - begins_[part]);
    }
    std::vector<Batch> batches(parts_.size());
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      if (!of_parts[part].empty()) {
        batches[part] = parts_[part]->get(of_parts[part], seed_of(part, seed));
        batches[part].ids.clear();  // numbers in the part; the loader sets those of the whole
      }
    }
    const std::size_t first = part_of(ids.front());
    if (of_parts[first].size() == ids.size()) {
      return std::move(batches[first]);
    }
    return merge(ids, batches, of_parts);
  }

  std::string fingerprint() const override {
    std::string parts;
    for (const auto& part : parts_) {
      parts += (parts.empty() ? "" : " + ") + part->fingerprint();
    }
    return fmt::format("{} of ({})", Dataset::fingerprint(), parts);
  }

 private:
  std::size_t part_of(std::int64_t id) const {
    return static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), id) - begins_.begin() - 1);
  }

  static SampleSeed seed_of(std::size_t part, const SampleSeed& seed) {
    return part == 0 ? seed : SampleSeed{.seed = splitmix(seed.seed ^ splitmix(part)), .epoch = seed.epoch};
  }

  /// The samples of all parts in the order of `ids`.
  Batch merge(std::span<const std::int64_t> ids, const std::vector<Batch>& batches,
              const std::vector<std::vector<std::int64_t>>& of_parts) const {
    Stacker stacker(ids.size());
    std::vector<std::int64_t> next(parts_.size());
    try {
      for (const std::int64_t id : ids) {
        const std::size_t part = part_of(id);
        stacker.add(id, sample_of(batches[part], next[part]++, std::ssize(of_parts[part])));
      }
    } catch (const DataError& error) {
      throw DataError(fmt::format("concat: {}", error.what()),
                      fmt::format("the parts begin at the samples {}; make their samples alike with map()",
                                  fmt::join(begins_.begin(), begins_.end() - 1, ", ")));
    }
    return stacker.stacked();
  }

  std::vector<std::shared_ptr<const Dataset>> parts_;
  std::vector<std::int64_t> begins_{0};  // of each part, and the end
};

std::shared_ptr<Dataset> make_tensor_dataset(const Batch& tensors, float scale) {
  if (!tensors.input.defined()) {
    throw DataError("tensor data set: input is undefined, expected a tensor of shape [N, ...]");
  }
  if (tensors.extra.has_value()) {
    throw DataError("tensor data set: found `extra`, expected tensors only",
                    "use sample_dataset for samples with other values");
  }
  NamedTensors columns = columns_of(tensors);
  for (const auto& [name, rows] : columns) {
    if (!rows.defined() || rows.dim() == 0) {
      throw DataError(
          fmt::format("tensor data set: {} {}, expected {}[N, ...]", name,
                      rows.defined() ? "has shape []" : "is undefined", rows.defined() ? "" : "a tensor of shape "),
          "dimension 0 must be the samples");
    }
    if (rows.size(0) != tensors.input.size(0)) {
      throw DataError(fmt::format("tensor data set: found {} rows of {}, expected {}, one for each row of input",
                                  rows.size(0), name, tensors.input.size(0)));
    }
  }
  return std::make_shared<TensorDataset>(std::move(columns), scale);
}

}  // namespace

std::string Dataset::fingerprint() const { return fmt::format("{} samples", size()); }

std::uint64_t SampleSeed::operator()(std::int64_t sample) const noexcept {
  const std::uint64_t of_epoch = splitmix(splitmix(seed) ^ static_cast<std::uint64_t>(epoch));
  return splitmix(of_epoch ^ static_cast<std::uint64_t>(sample));
}

std::shared_ptr<Dataset> tensor_dataset(at::Tensor input, at::Tensor target) {
  return make_tensor_dataset({.input = std::move(input), .target = std::move(target)}, /*scale=*/0);
}

std::shared_ptr<Dataset> tensor_dataset(const Batch& tensors) { return make_tensor_dataset(tensors, /*scale=*/0); }

std::shared_ptr<Dataset> scaled_bytes_dataset(at::Tensor bytes, at::Tensor target, float scale) {
  if (bytes.defined() && bytes.scalar_type() != at::kByte) {
    throw DataError(
        fmt::format("scaled bytes data set: input has dtype {}, expected Byte", c10::toString(bytes.scalar_type())),
        "for other dtypes use tensor_dataset");
  }
  if (!(scale > 0)) {
    throw DataError(fmt::format("scaled bytes data set: scale is {}, expected a number above 0", scale));
  }
  return make_tensor_dataset({.input = std::move(bytes), .target = std::move(target)}, scale);
}

std::shared_ptr<Dataset> sample_dataset(std::int64_t size,
                                        std::function<Batch(std::int64_t id, std::uint64_t seed)> get,
                                        std::string name) {
  if (size < 0) {
    throw DataError(fmt::format("sample data set: size is {}, expected 0 or more", size));
  }
  if (!get) {
    throw DataError("sample data set: the function is missing");
  }
  return std::make_shared<SampleDataset>(size, std::move(get), std::move(name));
}

std::shared_ptr<Dataset> subset(std::shared_ptr<const Dataset> data, std::vector<std::int64_t> ids) {
  require_data("subset", data);
  return std::make_shared<Subset>(std::move(data), std::move(ids));
}

std::shared_ptr<Dataset> take(std::shared_ptr<const Dataset> data, std::int64_t count) {
  require_data("take", data);
  if (count < 0) {
    throw DataError(fmt::format("take: count is {}, expected 0 or more", count));
  }
  std::vector<std::int64_t> ids(static_cast<std::size_t>(std::min(count, data->size())));
  std::iota(ids.begin(), ids.end(), std::int64_t{0});
  return subset(std::move(data), std::move(ids));
}

std::shared_ptr<Dataset> concat(std::vector<std::shared_ptr<const Dataset>> parts) {
  if (parts.empty()) {
    throw DataError("concat: found no data set, expected one or more");
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    require_data(fmt::format("concat, part {}", i), parts[i]);
  }
  return std::make_shared<Concat>(std::move(parts));
}

}  // namespace lockstep
