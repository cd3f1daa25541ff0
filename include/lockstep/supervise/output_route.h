// lockstep/supervise/output_route.h
//
// Destination of a rank's output: terminal, file, both or none. Torch-free.
#pragma once

namespace [[gnu::visibility("default")]] lockstep {

/// Destination of the output of one rank.
struct OutputRoute {
  bool out_on_terminal = true;
  bool err_on_terminal = true;
  bool out_in_file = false;
  bool err_in_file = false;
};

}  // namespace lockstep
