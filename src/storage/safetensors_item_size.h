// Sizes of the dtypes of safetensors. Torch-free.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

/// Bytes per element, 0 for an unknown name.
std::int64_t safetensors_item_size(std::string_view dtype) noexcept;

}  // namespace lockstep
