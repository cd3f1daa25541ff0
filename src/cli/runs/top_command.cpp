#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/descriptor.h"
#include "base/run_files.h"
#include "base/terminal.h"
#include "base/text.h"
#include "base/wall_clock.h"
#include "cli/commands.h"
#include "cli/runs/top_screen.h"

namespace lockstep {
namespace {

constexpr std::int64_t kLastBytes = 1 << 20;  // of the metrics: more rows than any terminal has columns

/// Throws: IoError.
void write_to_terminal(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = retry([&] { return ::write(STDOUT_FILENO, text.data(), text.size()); });
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd writable{STDOUT_FILENO, POLLOUT, 0};
      ::poll(&writable, 1, -1);
    } else {
      throw IoError(fmt::format("cannot write to standard output: {}", std::strerror(errno)), {}, errno);
    }
  }
}

/// The second screen of the terminal, without an echo of keys. The destructor restores what was there before. Signals
/// that end a process arrive here while it exists, so that they restore it too.
class LiveTerminal {
 public:
  LiveTerminal() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGTSTP, SIGWINCH}) {
      sigaddset(&signals, signal);
    }
    ::sigprocmask(SIG_BLOCK, &signals, &signals_before_);
    signals_ = Descriptor(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    ::tcgetattr(STDIN_FILENO, &keys_before_);
    termios keys = keys_before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
    keys.c_cc[VMIN] = 0;
    keys.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    write_to_terminal("\x1b[?1049h\x1b[?25l");
  }
  ~LiveTerminal() {
    try {
      write_to_terminal("\x1b[?25h\x1b[?1049l");
    } catch (const IoError&) {  // the terminal is gone
    }
    ::tcsetattr(STDIN_FILENO, TCSANOW, &keys_before_);
    signals_.close();
    ::sigprocmask(SIG_SETMASK, &signals_before_, nullptr);
  }
  LiveTerminal(const LiveTerminal&) = delete;
  LiveTerminal& operator=(const LiveTerminal&) = delete;

  /// Waits for a key, a signal or the time. The exit code if the view shall end.
  std::optional<int> wait(int milliseconds) const {
    std::array<pollfd, 2> watched{pollfd{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                                  pollfd{.fd = signals_.get(), .events = POLLIN, .revents = 0}};
    if (::poll(watched.data(), watched.size(), milliseconds) <= 0) {
      return std::nullopt;
    }
    signalfd_siginfo signal{};
    while (::read(signals_.get(), &signal, sizeof signal) == sizeof signal) {
      if (signal.ssi_signo != SIGWINCH && signal.ssi_signo != SIGTSTP) {
        return 128 + static_cast<int>(signal.ssi_signo);
      }
    }
    if (watched[0].revents == 0) {
      return std::nullopt;
    }
    std::array<char, 64> keys{};
    const ssize_t got = ::read(STDIN_FILENO, keys.data(), keys.size());
    const std::string_view typed(keys.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    constexpr std::string_view kEnd{"qQ\x03\x04", 4};  // also Ctrl-C and Ctrl-D
    const bool ends = got == 0 || typed.find_first_of(kEnd) != std::string_view::npos;
    return ends ? std::optional(0) : std::nullopt;
  }

 private:
  sigset_t signals_before_{};
  termios keys_before_{};
  Descriptor signals_{};
};

ScreenStyle style_of(const Variables& variables) {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (const auto value = variables.get(name); value && !value->empty()) {
      const std::string lower = to_lower(*value);
      return {.unicode = lower.find("utf-8") != std::string::npos || lower.find("utf8") != std::string::npos};
    }
  }
  return {.unicode = false};
}

/// Changes when one of the files changes.
std::string stamp(const std::filesystem::path& run) {
  std::string text;
  for (const char* name : {kMetricLinesName, kMetricTableName, kEventsName, kRunRecordName}) {
    std::error_code ignored;
    const auto time = std::filesystem::last_write_time(run / name, ignored).time_since_epoch().count();
    text += fmt::format("{} {} ", std::filesystem::file_size(run / name, ignored), time);
  }
  return text;
}

int show_live(const std::filesystem::path& directory, const RunData& first, const Variables& variables,
              ScreenStyle style) {
  constexpr int kPause = 250;      // milliseconds; a poll also works for files that another machine writes
  constexpr int kRereadEvery = 8;  // pauses: the state changes without a file when a process is killed
  RunData run = first;
  std::string seen = stamp(directory);
  const LiveTerminal terminal;
  for (int pauses = 0;; ++pauses) {
    const std::string now = stamp(directory);
    if (now != seen || pauses % kRereadEvery == 0) {
      try {
        run = read_run(real_file_system(), directory, kLastBytes);
      } catch (const IoError& error) {  // a start that cuts off rows, for example; the next turn reads again
        run.notes = {error.what()};
      }
      seen = now;
    }
    const Terminal screen = probe_terminal(STDOUT_FILENO, variables);  // a window can change its size
    const ScreenSize size{.width = screen.width, .height = screen.height};
    write_to_terminal(drawing(top_screen(run, unix_time(), size, style), size));
    if (const auto code = terminal.wait(kPause)) {
      return *code;
    }
  }
}

int top(const CommandLine& line, const Variables& variables) {
  const std::filesystem::path directory = line.arguments[0];
  const RunData run = read_run(real_file_system(), directory, kLastBytes);
  const Terminal terminal = probe_terminal(STDOUT_FILENO, variables);
  const ScreenStyle style = style_of(variables);
  if (terminal.interactive && ::isatty(STDIN_FILENO) == 1) {
    return show_live(directory, run, variables, style);
  }
  constexpr int kAnyHeight = 1000;
  const ScreenSize size{.width = terminal.width, .height = kAnyHeight, .breaks_lines = ::isatty(STDOUT_FILENO) == 1};
  for (const std::string& row : top_screen(run, unix_time(), size, style)) {
    fmt::print("{}\n", row);
  }
  return 0;
}

}  // namespace

const Command kTopCommand{
    .name = "top",
    .arguments = "RUN",
    .summary = "show a run in the terminal while it trains",
    .description =
        "Shows the run in the directory RUN while it trains: step, epoch, rate, curves and last values of its metrics, "
        "checkpoint and last events. It reads the files of the run and changes nothing. q or Ctrl-C ends it. Without a "
        "terminal it prints the picture once.",
    .exit_codes = "0, 2 usage or no run in RUN",
    .run = top};

}  // namespace lockstep
