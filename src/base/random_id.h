// Random unique names. Torch-free.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// 64 random bits as 16 hexadecimal digits.
std::string random_id();
bool is_random_id(std::string_view text) noexcept;  ///< it has the form of random_id()

}  // namespace lockstep
