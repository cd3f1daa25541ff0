// Which build of a program or library is loaded. Torch-free.
#pragma once

#include <string>

namespace lockstep {

/// Of the loaded file that `address` belongs to: its GNU build id in hexadecimal, else the size of what was loaded;
/// "unknown": no file has it.
std::string build_id_of(const void* address);

/// Of the running program.
std::string program_build_id();

}  // namespace lockstep
