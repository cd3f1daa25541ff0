// The host name of this machine. Torch-free.
#pragma once

#include <string>

namespace lockstep {

/// Printable; "localhost" if the machine has no name.
std::string host_name();

}  // namespace lockstep
