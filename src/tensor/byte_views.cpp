#include "tensor/byte_views.h"

#include <utility>

#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>

namespace lockstep {

at::Tensor mapped_bytes(std::shared_ptr<MappedFile> file) {
  const std::span<std::byte> bytes = file->bytes();
  return at::from_blob(
      bytes.data(), {static_cast<std::int64_t>(bytes.size())}, [file = std::move(file)](void*) {}, at::kByte);
}

at::Tensor typed_view(const at::Tensor& bytes, std::int64_t offset, c10::ScalarType type, c10::IntArrayRef shape) {
  const auto size = static_cast<std::int64_t>(c10::elementSize(type));
  at::Tensor part = bytes.narrow(0, offset, c10::multiply_integers(shape) * size);
  if (offset % size != 0) {
    part = part.clone();
  }
  return part.view(type).view(shape);
}

}  // namespace lockstep
