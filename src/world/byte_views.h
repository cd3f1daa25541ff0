// Tensors that are parts of a file's bytes.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "base/mapped_file.h"

namespace lockstep {

/// All of a file, uint8 [bytes]; it stays mapped as long as one of the tensor's views lives.
at::Tensor mapped_bytes(std::shared_ptr<MappedFile> file);

/// `shape` values that begin at byte `offset`, all inside `bytes` (uint8 [n], contiguous, aligned at its beginning): a
/// view, or a copy where a value does not lie on a multiple of its size.
at::Tensor typed_view(const at::Tensor& bytes, std::int64_t offset, c10::ScalarType type, c10::IntArrayRef shape);

}  // namespace lockstep
