// What standard error is, and the one status line kept below the log. Torch-free.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

struct Terminal {
  bool interactive = false;  ///< a terminal that can redraw (not dumb, not CI)
  bool colour = false;       ///< NO_COLOR, FORCE_COLOR, CLICOLOR_FORCE honoured
  int width = 80;
};

/// Asks the system about a descriptor; `variables` are the ones it may look at, read by the caller.
class Variables;
Terminal probe_terminal(int fd, const Variables& variables);

/// Writes a whole line to standard error, above the status line. Thread-safe, one write per line.
void write_line(std::string_view text);
/// Replaces the status line ("" removes it). Only where standard error is interactive; the caller checks.
void write_status(std::string_view text);

}  // namespace lockstep
