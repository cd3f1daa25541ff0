#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/tensor/tensor_file.h>

#include "base/assertion.h"
#include "base/mapped_file.h"
#include "base/paths.h"
#include "storage/torch_pickle.h"
#include "storage/zip_reader.h"
#include "tensor/byte_views.h"
#include "tensor/dtype_names.h"
#include "tensor/tensor_bytes.h"
#include "tensor/tensor_views.h"

namespace lockstep {
namespace {

using std::filesystem::path;

/// A file over bytes in memory.
class Memory final : public RandomAccessFile {
 public:
  explicit Memory(at::Tensor bytes) : bytes_(std::move(bytes)) {}
  std::int64_t size() const override { return bytes_.numel(); }
  void read(std::int64_t offset, std::span<std::byte> out) const override {
    if (offset < 0 || offset > size() || static_cast<std::int64_t>(out.size()) > size() - offset) {
      throw IoError("cannot read: the file is shorter");
    }
    std::memcpy(out.data(), static_cast<const std::byte*>(bytes_.const_data_ptr()) + offset, out.size());
  }

 private:
  at::Tensor bytes_;
};

std::span<std::byte> writable_bytes(const at::Tensor& bytes) {
  return {static_cast<std::byte*>(bytes.mutable_data_ptr()), bytes.nbytes()};
}

bool is_zip(const RandomAccessFile& file) {
  std::string begin(4, '\0');
  if (file.size() < static_cast<std::int64_t>(begin.size())) {
    return false;
  }
  file.read(0, std::as_writable_bytes(std::span(begin)));
  return begin == "PK\3\4";
}

NamedTensors load_torch_file(std::unique_ptr<RandomAccessFile> opened, const std::string& file,
                             const std::string& key) {
  const ZipReader zip(std::move(opened), file);
  if (zip.find("constants.pkl") != nullptr) {
    throw CheckpointError(file + ": found a TorchScript model, expected a file of weights",
                          "of torch::save in C++: torch::load(net, file) in the worker function, before fit(); of "
                          "torch.jit.save: lockstep::script_module(file)");
  }
  const auto read = [&](const std::string& record) {
    const ZipRecord* found = zip.find(record);
    if (found == nullptr) {
      throw CheckpointError(fmt::format("{}: found no record {}, expected a file of torch.save", file, record));
    }
    at::Tensor bytes = at::empty({found->size}, at::kByte);
    zip.read(*found, writable_bytes(bytes));
    return bytes;
  };
  const auto text = [&](const std::string& record) { return std::string(text_of_bytes(read(record))); };
  if (zip.find("byteorder") != nullptr && text("byteorder") != "little") {
    throw CheckpointError(file + ": found the byte order of another kind of machine, expected little-endian numbers",
                          "save it again on a machine with x86 or Arm processors");
  }
  const std::string pickle = text("data.pkl");
  std::vector<PickledTensor> described;
  try {
    described = parse_torch_pickle(pickle, key);
  } catch (const CheckpointError& error) {
    throw CheckpointError(file + ": " + error.what(), error.hint());
  }
  std::map<std::string, at::Tensor> storages;
  NamedTensors tensors;
  for (const PickledTensor& tensor : described) {
    at::Tensor& bytes = storages[tensor.storage];
    if (!bytes.defined()) {
      bytes = read("data/" + tensor.storage);
    }
    if (bytes.numel() < tensor.storage_bytes) {
      throw CheckpointError(fmt::format("{}: {}: found a storage of {} bytes, expected {}", file, tensor.name,
                                        bytes.numel(), tensor.storage_bytes));
    }
    const c10::ScalarType dtype = c10::getStringToDtypeMap().at(std::string(tensor.dtype));
    tensors.emplace_back(tensor.name,
                         at::empty({0}, dtype).set_(bytes.storage(), tensor.offset, tensor.shape, tensor.strides));
  }
  return tensors;
}

}  // namespace

std::string saved_dtype(const at::Tensor& tensor, const std::string& file, const std::string& name) {
  const auto dtype = dtype_name(tensor.scalar_type());
  if (!dtype) {
    throw CheckpointError(fmt::format("{}: {} has dtype {}, which safetensors does not support", file, name,
                                      c10::toString(tensor.scalar_type())),
                          "convert the tensor before saving");
  }
  return std::string(*dtype);
}

TensorViews::TensorViews(const NamedTensors& tensors, const std::string& file) {
  for (const auto& [name, tensor] : tensors) {
    const std::string dtype = saved_dtype(tensor, file, name);
    const at::Tensor& host = held.emplace_back(tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous());
    views.push_back({.name = name, .dtype = dtype, .shape = host.sizes().vec(), .bytes = bytes_of(host)});
  }
}

std::int64_t TensorViews::byte_size() const {
  std::int64_t bytes = 0;
  for (const TensorView& view : views) {
    bytes += static_cast<std::int64_t>(view.bytes.size());
  }
  return bytes;
}

void TensorViews::write(const std::function<void(std::span<const std::byte>)>& append,
                        const std::map<std::string, std::string>& tied_names) const {
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  metadata.insert(tied_names.begin(), tied_names.end());
  write_safetensors(views, metadata, append);
}

NamedTensors view_tensors(const at::Tensor& bytes, const std::string& file) {
  const SafetensorsReader reader(std::make_unique<Memory>(bytes), file);
  NamedTensors tensors;
  for (const TensorEntry& entry : reader.entries()) {
    const auto dtype = dtype_of(entry.dtype);
    LOCKSTEP_ASSERT(dtype, "the reader accepts only dtypes that LibTorch has");
    tensors.emplace_back(entry.name, typed_view(bytes, reader.data_offset() + entry.begin, *dtype, entry.shape));
  }
  return tensors;
}

NamedTensors load_tensors(const path& file, const std::string& key) {
  if (std::error_code ignored; std::filesystem::is_directory(file, ignored)) {
    throw CheckpointError(fmt::format("{}: found a directory, expected a file of tensors", file.string()),
                          "of a checkpoint load model.safetensors");
  }
  auto opened = real_file_system().open(follow_links(file));
  if (is_zip(*opened)) {
    return load_torch_file(std::move(opened), file.string(), key);
  }
  if (!key.empty()) {
    throw CheckpointError(
        fmt::format("{}: found no file of torch.save, expected one with the key {}", file.string(), key),
        "a safetensors file has no dictionaries: leave the key out");
  }
  const at::Tensor bytes = at::empty({opened->size()}, at::kByte);
  opened->read(0, writable_bytes(bytes));
  return view_tensors(bytes, file.string());
}

NamedTensors map_tensors(const path& file) {
  return view_tensors(mapped_bytes(MappedFile::open(follow_links(file))), file.string());
}

void save_tensors(const path& file, const NamedTensors& tensors) {
  const TensorViews views(tensors, file.string());
  write_file(real_file_system(), file,
             [&](WritableFile& out) { views.write([&](std::span<const std::byte> bytes) { out.append(bytes); }); });
}

}  // namespace lockstep
