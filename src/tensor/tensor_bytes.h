// The bytes of tensors, and rows of bytes as tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "base/assertion.h"

namespace lockstep {

/// `tensor`: on the CPU and contiguous. Valid as long as its memory is.
inline std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  LOCKSTEP_ASSERT(tensor.is_cpu() && tensor.is_contiguous(), "other bytes would be read");
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// The same bytes as characters.
inline std::string_view text_of_bytes(const at::Tensor& tensor) {
  const std::span<const std::byte> bytes = bytes_of(tensor);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A copy as uint8 [bytes].
inline at::Tensor bytes_tensor(std::string_view bytes) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  if (!bytes.empty()) {
    std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  }
  return tensor;
}

}  // namespace lockstep
