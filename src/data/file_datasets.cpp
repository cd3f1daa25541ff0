#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/data/file_datasets.h>

#include "base/crc32c.h"
#include "base/mapped_file.h"
#include "data/recycled_memory.h"
#include "data/sample_error.h"
#include "formats/array_file.h"
#include "formats/cifar10.h"
#include "formats/token_windows.h"
#include "tensor/byte_views.h"
#include "tensor/dtype_names.h"
#include "tensor/shape_text.h"

namespace lockstep {

namespace {

namespace fs = std::filesystem;
using File = std::shared_ptr<MappedFile>;

[[noreturn]] void refuse_compressed(const fs::path& path) {
  throw DataError(fmt::format("{}: this is a gzip file, expected an unpacked one", path.string()),
                  fmt::format("gunzip -k {}", path.string()));
}

File open_data(const fs::path& path) {
  std::error_code unknown;  // without permission, opening the file reports the error
  if (!fs::exists(path, unknown) && !unknown) {
    fs::path packed = path;
    packed += ".gz";
    if (fs::exists(packed, unknown)) {
      refuse_compressed(packed);
    }
    throw DataError(fmt::format("{}: no such file", path.string()));
  }
  File file = MappedFile::open(path);
  const std::span<const std::byte> bytes = file->bytes();
  if (bytes.empty()) {
    throw DataError(fmt::format("{}: the file is empty", path.string()));
  }
  if (bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b}) {
    refuse_compressed(path);
  }
  return file;
}

/// Runs a parser, and adds the name of the file to its errors.
template <class Parse>
auto parse_file(const MappedFile& file, const Parse& parse) {
  try {
    return parse(file.bytes());
  } catch (const Error& error) {
    throw DataError(fmt::format("{}: {}", file.path().string(), error.what()), error.hint());
  }
}

at::Tensor tensor_in(const File& file, const ArrayLayout& layout) {
  const auto type = dtype_of(layout.dtype);
  if (!type) {
    throw DataError(fmt::format("{}: LibTorch does not support the dtype {}", file->path().string(), layout.dtype));
  }
  return typed_view(mapped_bytes(file), layout.offset, *type, layout.shape);
}

class TokenDataset final : public Dataset {
 public:
  TokenDataset(File file, const TokenFile& layout)
      : file_(std::move(file)), windows_(parse_file(*file_, [&](std::span<const std::byte> bytes) {
          return TokenWindows(bytes, layout.token_bytes, layout.context,
                              layout.stride > 0 ? layout.stride : layout.context);
        })) {}

  std::int64_t size() const override { return windows_.size(); }

  Batch get(std::span<const std::int64_t> ids, const SampleSeed&) const override {
    const std::int64_t context = windows_.context();
    const std::vector<std::int64_t> sizes = {static_cast<std::int64_t>(ids.size()), context};
    Batch batch{.input = memory_.take(sizes, at::kLong), .target = memory_.take(sizes, at::kLong)};
    auto* input = batch.input.mutable_data_ptr<std::int64_t>();
    auto* target = batch.target.mutable_data_ptr<std::int64_t>();
    check_ids(file_->path().string(), ids, size());
    for (const std::int64_t id : ids) {
      windows_.read(id, input, target);
      input += context;
      target += context;
    }
    return batch;
  }

  std::string fingerprint() const override {
    const std::span<const std::byte> bytes = file_->bytes();
    const std::size_t ends = std::min<std::size_t>(bytes.size(), 4096);
    return fmt::format("{} of {} tokens, {} bytes {:08x}", Dataset::fingerprint(), windows_.context(), bytes.size(),
                       crc32c(bytes.last(ends), crc32c(bytes.first(ends))));
  }

 private:
  File file_;
  TokenWindows windows_;
  mutable RecycledMemory memory_{};
};

/// Maps each file of a data set that has several.
std::vector<File> open_all(const fs::path& directory, const std::vector<std::string>& names) {
  std::vector<File> files;
  for (const std::string& name : names) {
    try {
      files.push_back(open_data(directory / name));
    } catch (const DataError& error) {
      const std::string expected = fmt::format("expected in {}: {}", directory.string(), fmt::join(names, ", "));
      throw DataError(error.what(), error.hint().empty() ? expected : error.hint() + "; " + expected);
    }
  }
  return files;
}

}  // namespace

at::Tensor npy_tensor(const fs::path& file) {
  const File mapped = open_data(file);
  return tensor_in(mapped, parse_file(*mapped, parse_npy));
}

std::shared_ptr<Dataset> token_dataset(const fs::path& file, const TokenFile& layout) {
  if (layout.token_bytes != 2 && layout.token_bytes != 4) {
    throw DataError(fmt::format("token data set: token_bytes is {}, expected 2 or 4", layout.token_bytes));
  }
  if (layout.stride < 0) {
    throw DataError(fmt::format("token data set: stride is {}, expected 0 or more", layout.stride),
                    "it is the distance between the beginnings of two windows; 0 is the length of a window");
  }
  return std::make_shared<TokenDataset>(open_data(file), layout);
}

std::shared_ptr<Dataset> mnist_dataset(const fs::path& directory, DatasetPart part) {
  const std::string prefix = part == DatasetPart::train ? "train" : "t10k";
  const auto files = open_all(directory, {prefix + "-images-idx3-ubyte", prefix + "-labels-idx1-ubyte"});
  const at::Tensor images = tensor_in(files[0], parse_file(*files[0], parse_idx));
  const at::Tensor labels = tensor_in(files[1], parse_file(*files[1], parse_idx));
  if (images.dim() != 3 || labels.dim() != 1 || images.size(0) != labels.size(0)) {
    throw DataError(fmt::format("{}: found images {} and labels {}, expected [N, height, width] and [N]",
                                directory.string(), shape_text(images.sizes()), shape_text(labels.sizes())));
  }
  return scaled_bytes_dataset(images.unsqueeze(1), labels.to(at::kLong));
}

std::shared_ptr<Dataset> cifar10_dataset(const fs::path& directory, DatasetPart part) {
  std::vector<std::string> names = {"test_batch.bin"};
  if (part == DatasetPart::train) {
    names = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"};
  }
  std::vector<at::Tensor> images;
  std::vector<at::Tensor> labels;
  for (const File& file : open_all(directory, names)) {
    const std::int64_t records = parse_file(*file, count_cifar10);
    const at::Tensor all =
        tensor_in(file, {.dtype = "U8", .shape = {records, static_cast<std::int64_t>(kCifar10Record)}});
    labels.push_back(all.select(1, 0).to(at::kLong));
    images.push_back(all.slice(1, 1).reshape({records, 3, 32, 32}));
  }
  return scaled_bytes_dataset(at::cat(images), at::cat(labels));
}

}  // namespace lockstep
