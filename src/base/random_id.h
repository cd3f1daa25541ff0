// Names that nobody else has. Torch-free.
#pragma once

#include <string>

namespace lockstep {

/// 64 random bits as 16 hexadecimal digits.
std::string random_id();

}  // namespace lockstep
