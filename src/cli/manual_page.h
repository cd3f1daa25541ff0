// The manual pages in the language of man. Torch-free.
#pragma once

#include <string>

namespace lockstep {

std::string manual_page();            ///< lockstep(1), from the list of commands
std::string converter_manual_page();  ///< lockstep-convert(1)

}  // namespace lockstep
