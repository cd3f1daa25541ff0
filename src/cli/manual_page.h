// lockstep(1) in the language of man, from the list of commands. Torch-free.
#pragma once

#include <string>

namespace lockstep {

std::string manual_page();

}  // namespace lockstep
