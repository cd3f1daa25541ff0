// What this machine calls itself. Torch-free.
#pragma once

#include <string>

namespace lockstep {

/// Printable; "localhost" if it has no name.
std::string host_name();

}  // namespace lockstep
