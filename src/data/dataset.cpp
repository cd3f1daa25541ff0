#include <algorithm>
#include <cstddef>
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
#include "base/splitmix.h"
#include "data/gather_rows.h"
#include "data/sample_error.h"
#include "data/stacker.h"

namespace lockstep {

namespace {

template <typename T>
std::uint32_t crc_of(std::span<const T> values) {
  return crc32c(std::as_bytes(values));
}

/// ", input [1000, 10] Float 1a2b3c4d": hashes only the first and the last row, so that the cost does not depend on the
/// size.
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
  TensorDataset(const at::Tensor& input, const at::Tensor& target, float scale)
      : input_(input.detach()), target_(target.defined() ? target.detach() : target), scale_(scale) {}

  std::int64_t size() const override { return input_.size(0); }

  Batch get(std::span<const std::int64_t> ids, const SampleSeed&) const override {
    check_ids("tensor data set", ids, size());
    return {.input = gather_rows(input_, ids, memory_, scale_),
            .target = target_.defined() ? gather_rows(target_, ids, memory_) : at::Tensor()};
  }

  std::string fingerprint() const override {
    return Dataset::fingerprint() + describe_rows("input", input_) + describe_rows("target", target_);
  }

 private:
  at::Tensor input_;
  at::Tensor target_;
  float scale_;  // 0: none
  mutable RecycledMemory memory_{};
};

class SampleDataset final : public Dataset {
 public:
  SampleDataset(std::int64_t size, std::function<Batch(std::int64_t, std::uint64_t)> get)
      : size_(size), get_(std::move(get)) {}

  std::int64_t size() const override { return size_; }

  Batch get(std::span<const std::int64_t> ids, const SampleSeed& seed) const override {
    check_ids("sample data set", ids, size_);
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
    throw DataError(fmt::format("tensor data set: {} has shape [], expected [N, ...]", name),
                    "dimension 0 must be the samples");
  }
}

std::shared_ptr<Dataset> make_tensor_dataset(const at::Tensor& input, const at::Tensor& target, float scale) {
  if (!input.defined()) {
    throw DataError("tensor data set: input is undefined, expected a tensor of shape [N, ...]");
  }
  check_has_rows("input", input);
  if (target.defined()) {
    check_has_rows("target", target);
    if (target.size(0) != input.size(0)) {
      throw DataError(fmt::format("tensor data set: found {} targets, expected {}, one for each row of input",
                                  target.size(0), input.size(0)));
    }
  }
  return std::make_shared<TensorDataset>(input, target, scale);
}

}  // namespace

std::string Dataset::fingerprint() const { return fmt::format("{} samples", size()); }

std::uint64_t SampleSeed::operator()(std::int64_t sample) const noexcept {
  const std::uint64_t of_epoch = splitmix(splitmix(seed) ^ static_cast<std::uint64_t>(epoch));
  return splitmix(of_epoch ^ static_cast<std::uint64_t>(sample));
}

std::shared_ptr<Dataset> tensor_dataset(at::Tensor input, at::Tensor target) {
  return make_tensor_dataset(input, target, /*scale=*/0);
}

std::shared_ptr<Dataset> scaled_bytes_dataset(at::Tensor bytes, at::Tensor target, float scale) {
  if (bytes.defined() && bytes.scalar_type() != at::kByte) {
    throw DataError(
        fmt::format("scaled bytes data set: input has dtype {}, expected Byte", c10::toString(bytes.scalar_type())),
        "for other dtypes use tensor_dataset");
  }
  if (!(scale > 0)) {
    throw DataError(fmt::format("scaled bytes data set: scale is {}, expected a number above 0", scale));
  }
  return make_tensor_dataset(bytes, target, scale);
}

std::shared_ptr<Dataset> sample_dataset(std::int64_t size,
                                        std::function<Batch(std::int64_t id, std::uint64_t seed)> get) {
  if (size < 0) {
    throw DataError(fmt::format("sample data set: size is {}, expected 0 or more", size));
  }
  if (!get) {
    throw DataError("sample data set: the function is empty");
  }
  return std::make_shared<SampleDataset>(size, std::move(get));
}

std::shared_ptr<Dataset> subset(std::shared_ptr<const Dataset> data, std::vector<std::int64_t> ids) {
  if (!data) {
    throw DataError("subset: the data set is null");
  }
  return std::make_shared<Subset>(std::move(data), std::move(ids));
}

}  // namespace lockstep
