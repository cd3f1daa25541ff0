// lockstep/config/program_value.h
//
// What a program's own flags were given. Torch-free.
#pragma once

#include <string>

namespace [[gnu::visibility("default")]] lockstep {

/// The value of one of the program's own flags or positional arguments (see Flags).
struct ProgramValue {
  std::string name{};
  std::string text{};
  bool is_text = false;     ///< in quotes in a file; else a number, true or false
  bool may_change = false;  ///< between two starts of a run
};

}  // namespace lockstep
