// lockstep/supervise/output_route.h
//
// Terminal, file, both or neither. Torch-free.
#pragma once

namespace [[gnu::visibility("default")]] lockstep {

/// Where the output of one rank goes; nowhere is possible.
struct OutputRoute {
  bool out_on_terminal = true;
  bool err_on_terminal = true;
  bool out_in_file = false;
  bool err_in_file = false;
};

}  // namespace lockstep
