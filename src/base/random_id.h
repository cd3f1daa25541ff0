// Names that nobody else has. Torch-free.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// 64 random bits as 16 hexadecimal digits.
std::string random_id();
bool is_random_id(std::string_view text) noexcept;  ///< it could come from random_id()

}  // namespace lockstep
