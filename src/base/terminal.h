// Output to terminals and pipes, and the one status line that stays below the log. Torch-free.
#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep {

class Variables;

struct Terminal {
  bool interactive = false;  ///< a terminal that can redraw (not TERM=dumb, not in CI)
  int width = 80;
  int height = 24;
};

/// Queries a descriptor; the caller passes the environment variables.
Terminal probe_terminal(int fd, const Variables& variables);

/// Of a text in a terminal of this width: 60 to 120, so that its lines can be read.
std::size_t text_columns(int width);

/// Writes everything, also to a descriptor that does not block; one write(2) if it accepts all bytes. Errors are
/// ignored: there is no other place to report them, and a reader that has ended (`| head`) must not end the run.
void write_text(int fd, std::string_view text) noexcept;

/// Writes one whole line to standard error, above the status line. Thread-safe; one write per line.
void write_line(std::string_view text);
/// Replaces the status line ("" removes it). Call it only if standard error is interactive.
void write_status(std::string_view text);

}  // namespace lockstep
