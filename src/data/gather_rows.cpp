#include "data/gather_rows.h"

#include <cstddef>
#include <cstring>

#include <ATen/ATen.h>

#include "base/vectorized.h"

namespace lockstep {

namespace {

LOCKSTEP_VECTORIZED void widen(const std::uint8_t* bytes, std::int64_t count, float scale, float* out) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(bytes[i]) * scale;
  }
}

template <class Row>
void copy_rows(const std::byte* from, std::span<const std::int64_t> ids, std::byte* to) noexcept {
  for (const std::int64_t id : ids) {
    std::memcpy(to, from + static_cast<std::size_t>(id) * sizeof(Row), sizeof(Row));
    to += sizeof(Row);
  }
}

void copy_rows(const std::byte* from, std::size_t row_bytes, std::span<const std::int64_t> ids,
               std::byte* to) noexcept {
  switch (row_bytes) {
    case 0:
      return;  // such tensors have no memory
    case 4:
      return copy_rows<std::uint32_t>(from, ids, to);
    case 8:
      return copy_rows<std::uint64_t>(from, ids, to);
    default:
      for (const std::int64_t id : ids) {
        std::memcpy(to, from + static_cast<std::size_t>(id) * row_bytes, row_bytes);
        to += row_bytes;
      }
  }
}

}  // namespace

at::Tensor gather_rows(const at::Tensor& rows, std::span<const std::int64_t> ids, RecycledMemory& memory, float scale) {
  if (!rows.is_cpu() || !rows.is_contiguous()) {
    const at::Tensor index = at::tensor(at::IntArrayRef(ids.data(), ids.size())).to(rows.device());
    const at::Tensor picked = rows.index_select(0, index);
    return scale == 0 ? picked : picked.to(at::kFloat).mul_(scale);
  }
  std::vector<std::int64_t> sizes = rows.sizes().vec();
  sizes.front() = static_cast<std::int64_t>(ids.size());
  const std::int64_t row_elements = rows.size(0) == 0 ? 0 : rows.numel() / rows.size(0);
  at::Tensor out = memory.take(sizes, scale == 0 ? rows.scalar_type() : at::kFloat);
  if (scale == 0) {
    copy_rows(static_cast<const std::byte*>(rows.const_data_ptr()),
              static_cast<std::size_t>(row_elements * rows.element_size()), ids,
              static_cast<std::byte*>(out.mutable_data_ptr()));
    return out;
  }
  const auto* const bytes = rows.const_data_ptr<std::uint8_t>();
  auto* to = out.mutable_data_ptr<float>();
  for (const std::int64_t id : ids) {
    widen(bytes + id * row_elements, row_elements, scale, to);
    to += row_elements;
  }
  return out;
}

}  // namespace lockstep
