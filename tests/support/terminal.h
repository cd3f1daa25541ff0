// Runs a program on its own terminal.
#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "base/exec_arguments.h"

namespace lockstep {

/// A program on a pseudo-terminal.
class OnTerminal {
 public:
  explicit OnTerminal(std::vector<std::string> argv, const std::map<std::string, std::string>& extra = {},
                      unsigned short columns = 100) {
    winsize size{.ws_row = 30, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      setenv("TERM", "xterm", 1);
      unsetenv("CI");
      unsetenv("NO_COLOR");
      for (const auto& [name, value] : extra) {
        setenv(name.c_str(), value.c_str(), 1);
      }
      const auto args = pointers_to(argv);
      execv(args[0], args.data());
      _exit(127);
    }
  }
  ~OnTerminal() {
    close(terminal_);
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;

  void type(const std::string& keys) const {
    ASSERT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }

  void signal(int number) const { kill(pid_, number); }

  /// Whether the terminal shows typed keys and collects them to lines, as a shell expects.
  bool echoes() const {
    termios settings{};
    return tcgetattr(terminal_, &settings) == 0 && (settings.c_lflag & ECHO) != 0 && (settings.c_lflag & ICANON) != 0;
  }

  /// Reads until `text` appears ("" : until the program ends). False: it did not appear within a minute.
  bool read_until(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (text.empty() || screen.find(text) == std::string::npos) {
      pollfd waiting{.fd = terminal_, .events = POLLIN, .revents = 0};
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
      std::array<char, 4096> buffer{};
      if (left <= 0 || poll(&waiting, 1, static_cast<int>(left)) <= 0) {
        return false;
      }
      const auto got = read(terminal_, buffer.data(), buffer.size());
      if (got <= 0) {
        return text.empty();
      }
      screen.append(buffer.data(), static_cast<std::size_t>(got));
    }
    return true;
  }

  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  std::string screen{};

 private:
  int terminal_ = -1;
  pid_t pid_ = -1;
};

}  // namespace lockstep
