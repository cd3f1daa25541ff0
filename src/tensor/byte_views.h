// Tensors that are views of the bytes of a file.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "base/mapped_file.h"

namespace lockstep {

/// The whole file as uint8 [bytes]; it stays mapped while a view of the tensor exists.
at::Tensor mapped_bytes(std::shared_ptr<MappedFile> file);

/// `shape` values that begin at byte `offset`, all inside `bytes` (uint8 [n], contiguous, aligned at its beginning): a
/// view, or a copy if `offset` is not a multiple of the size of a value.
at::Tensor typed_view(const at::Tensor& bytes, std::int64_t offset, c10::ScalarType type, c10::IntArrayRef shape);

}  // namespace lockstep
