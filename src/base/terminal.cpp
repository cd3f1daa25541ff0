#include "base/terminal.h"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <string>

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <lockstep/base/variables.h>

#include "base/text.h"

namespace lockstep {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";

struct Console {
  std::mutex mutex;
  std::string status;
};

Console& console() {
  // Never destroyed: threads may still log while the process ends.
  static auto& the_console = *new Console;
  return the_console;
}

}  // namespace

void write_text(int fd, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd writable{fd, POLLOUT, 0};
      ::poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      return;
    }
  }
}

Terminal probe_terminal(int fd, const Variables& variables) {
  const bool is_terminal = ::isatty(fd) == 1;
  Terminal terminal;
  terminal.interactive = is_terminal && variables.get("TERM").value_or("dumb") != "dumb" && !variables.has("CI");
  winsize size{};
  if (is_terminal && ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    terminal.width = size.ws_col;
    terminal.height = size.ws_row > 0 ? size.ws_row : terminal.height;
  } else if (const auto columns = parse_int(variables.get("COLUMNS").value_or("")); columns && *columns > 0) {
    terminal.width = static_cast<int>(std::min<std::int64_t>(*columns, 10'000));
  }
  return terminal;
}

std::size_t text_columns(int width) { return static_cast<std::size_t>(std::clamp(width, 60, 120)); }

void write_line(std::string_view text) {
  Console& shared = console();
  const std::lock_guard lock(shared.mutex);
  std::string out;
  out.reserve(text.size() + shared.status.size() + kEraseLine.size() + 1);
  if (!shared.status.empty()) {
    out += kEraseLine;
  }
  out += text;
  out += '\n';
  out += shared.status;
  write_text(STDERR_FILENO, out);
}

void write_status(std::string_view text) {
  Console& shared = console();
  const std::lock_guard lock(shared.mutex);
  if (text.empty() && shared.status.empty()) {
    return;
  }
  shared.status = text;
  write_text(STDERR_FILENO, std::string(kEraseLine) + shared.status);
}

}  // namespace lockstep
