#include <cstddef>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/tensor/tensor_file.h>

#include "base/mapped_file.h"
#include "tensor/byte_views.h"
#include "tensor/dtype_names.h"
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

// Links are followed, because the user named the path.
path resolved(const path& file) {
  std::error_code error;
  path target = std::filesystem::canonical(file, error);
  return error ? file : target;
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
    const at::Tensor& host = held.emplace_back(tensor.detach().to(at::kCPU).resolve_conj().contiguous());
    views.push_back({.name = name,
                     .dtype = dtype,
                     .shape = host.sizes().vec(),
                     .bytes = {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()}});
  }
}

std::int64_t TensorViews::byte_size() const {
  std::int64_t bytes = 0;
  for (const TensorView& view : views) {
    bytes += static_cast<std::int64_t>(view.bytes.size());
  }
  return bytes;
}

void TensorViews::write(const std::function<void(std::span<const std::byte>)>& append) const {
  write_safetensors(views, {{"format", "pt"}}, append);
}

NamedTensors view_tensors(const at::Tensor& bytes, const std::string& file) {
  const SafetensorsReader reader(std::make_unique<Memory>(bytes), file);
  NamedTensors tensors;
  for (const TensorEntry& entry : reader.entries()) {
    const auto dtype = dtype_of(entry.dtype);
    if (!dtype) {
      throw CheckpointError(
          fmt::format("{}: {} has dtype {}, which LibTorch does not support", file, entry.name, entry.dtype));
    }
    tensors.emplace_back(entry.name, typed_view(bytes, reader.data_offset() + entry.begin, *dtype, entry.shape));
  }
  return tensors;
}

NamedTensors load_tensors(const path& file) {
  const auto opened = real_file_system().open(resolved(file));
  const at::Tensor bytes = at::empty({opened->size()}, at::kByte);
  opened->read(0, {static_cast<std::byte*>(bytes.mutable_data_ptr()), bytes.nbytes()});
  return view_tensors(bytes, file.string());
}

NamedTensors map_tensors(const path& file) {
  return view_tensors(mapped_bytes(MappedFile::open(resolved(file))), file.string());
}

void save_tensors(const path& file, const NamedTensors& tensors) {
  const TensorViews views(tensors, file.string());
  write_file(real_file_system(), file,
             [&](WritableFile& out) { views.write([&](std::span<const std::byte> bytes) { out.append(bytes); }); });
}

}  // namespace lockstep
