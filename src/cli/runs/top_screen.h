// The picture of `lockstep top`, as text. Pure. Torch-free.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/runs/run_data.h"

namespace lockstep {

struct ScreenSize {
  int width = 80;
  int height = 24;
  bool breaks_lines = true;  ///< between words, to fit into the width; false: they may be longer, as in a file
};

struct ScreenStyle {
  bool unicode = true;  ///< block characters for the curves
};

/// Lines that fit into the size. `now`: seconds since 1970.
std::vector<std::string> top_screen(const RunData& run, double now, ScreenSize size, ScreenStyle style);

/// The characters that draw the lines over the picture before.
std::string drawing(const std::vector<std::string>& lines, ScreenSize size);

/// One character per value, the last `width` of them; a value that is not finite is '!'.
std::string sparkline(std::span<const double> values, int width, ScreenStyle style);

}  // namespace lockstep
