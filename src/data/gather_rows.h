// Copies rows of a tensor into a batch.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "data/recycled_memory.h"

namespace lockstep {

/// The rows `ids` of a tensor [N, ...] as a new tensor; the ids must be valid. If `scale` is not 0, rows of bytes
/// become floats times `scale`.
at::Tensor gather_rows(const at::Tensor& rows, std::span<const std::int64_t> ids, RecycledMemory& memory,
                       float scale = 0);

}  // namespace lockstep
