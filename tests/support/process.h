// A program under test, with pipes for its output and a deadline for each wait. It is always ended.
#pragma once

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/base/variables.h>

#include "base/exec_arguments.h"
#include "base/mapped.h"

namespace lockstep {

class Process {
 public:
  using Seconds = std::chrono::seconds;
  static constexpr const char* kWatcher = "lockstep-watch";
  using Environment = std::map<std::string, std::string>;  // added to this process's; "" removes

  struct Result {
    int code = 0;  // 128 + N for signal N
    std::string out{};
    std::string err{};
    double seconds = 0;
    double cpu_seconds = 0;  // of the program and the children it waited for
  };

  explicit Process(std::vector<std::string> argv, const Environment& extra = {}, const std::string& directory = ".") {
    auto merged = read_environment().all();
    for (const auto& [name, value] : extra) {
      if (value.empty()) {
        merged.erase(name);
      } else {
        merged[name] = value;
      }
    }
    std::vector<std::string> entries = environment_entries(Variables(merged));
    const auto args = pointers_to(argv);
    const auto environment = pointers_to(entries);
    std::array<int, 2> out{};
    std::array<int, 2> err{};
    if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0) {
      throw std::runtime_error("pipe2 failed");
    }
    start_ = std::chrono::steady_clock::now();
    pid_ = fork();
    if (pid_ == 0) {
      setpgid(0, 0);
      dup2(out[1], STDOUT_FILENO);
      dup2(err[1], STDERR_FILENO);
      if (chdir(directory.c_str()) == 0) {
        execvpe(args[0], args.data(), environment.data());
      }
      dprintf(STDERR_FILENO, "cannot run %s: %s\n", args[0], std::strerror(errno));
      _exit(127);
    }
    close(out[1]);
    close(err[1]);
    out_ = out[0];
    err_ = err[0];
    handle_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  }

  ~Process() {
    if (!ended_) {
      ::kill(-pid_, SIGKILL);
      ::kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(out_);
    close(err_);
    close(handle_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const noexcept { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  const std::string& err() const noexcept { return result_.err; }

  /// Reads until standard error or output contains `text`. False: the deadline passed or the program ended first.
  bool wait_for(const std::string& text, Seconds deadline = Seconds(60)) {
    const auto end = std::chrono::steady_clock::now() + deadline;
    const auto seen = [&] {
      return result_.err.find(text) != std::string::npos || result_.out.find(text) != std::string::npos;
    };
    while (!seen()) {
      if (!pump(end)) {
        return seen();
      }
    }
    return true;
  }

  /// Reads for this time; true: the program has ended.
  bool ended_within(std::chrono::milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    while ((out_open_ || err_open_) && pump(end)) {
    }
    return !out_open_ && !err_open_;
  }

  /// Reads to the end. Throws if the deadline passes first.
  Result wait(Seconds deadline = Seconds(120)) {
    const auto end = std::chrono::steady_clock::now() + deadline;
    while (out_open_ || err_open_) {
      if (!pump(end) && std::chrono::steady_clock::now() >= end) {
        throw std::runtime_error("still running after the deadline; its output so far:\n" + result_.out + result_.err);
      }
    }
    pollfd ended{.fd = handle_, .events = POLLIN, .revents = 0};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    if (poll(&ended, 1, static_cast<int>(std::max<std::int64_t>(left, 0))) != 1) {
      throw std::runtime_error("closed its output but still running");
    }
    int status = 0;
    rusage used{};
    wait4(pid_, &status, 0, &used);
    ended_ = true;
    const auto seconds_of = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    result_.cpu_seconds = seconds_of(used.ru_utime) + seconds_of(used.ru_stime);
    result_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    return result_;
  }

  /// The name of a process; "" if it has ended.
  static std::string name_of(pid_t pid) {
    std::string name;
    std::ifstream("/proc/" + std::to_string(pid) + "/comm") >> name;
    return name;
  }

  /// The direct children of a process.
  static std::vector<pid_t> children_of(pid_t pid) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children");
    std::vector<pid_t> children;
    for (pid_t child = 0; in >> child;) {
      children.push_back(child);
    }
    return children;
  }

  /// The ranks below a launcher, in order of rank: descendants with a RANK variable.
  static std::vector<pid_t> ranks_of(pid_t launcher) {
    std::map<int, pid_t> ranks;
    std::vector<pid_t> left = children_of(launcher);
    while (!left.empty()) {
      const pid_t pid = left.back();
      left.pop_back();
      const auto below = children_of(pid);
      left.insert(left.end(), below.begin(), below.end());
      std::ifstream in("/proc/" + std::to_string(pid) + "/environ");
      for (std::string entry; std::getline(in, entry, '\0');) {
        if (entry.starts_with("RANK=")) {
          ranks.try_emplace(std::stoi(entry.substr(5)), pid);
        }
      }
    }
    return mapped(ranks, [](const auto& rank) { return rank.second; });
  }

  /// True if all these processes end within the deadline.
  static bool gone(const std::vector<pid_t>& pids, std::chrono::milliseconds deadline) {
    const auto end = std::chrono::steady_clock::now() + deadline;
    for (const pid_t pid : pids) {
      const int handle = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
      if (handle < 0) {
        continue;  // has already ended
      }
      pollfd ended{.fd = handle, .events = POLLIN, .revents = 0};
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
      const int found = poll(&ended, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
      close(handle);
      if (found != 1) {
        return false;
      }
    }
    return true;
  }

 private:
  // Reads available output, waits for it until `end`. False: end of output, or the deadline passed.
  bool pump(std::chrono::steady_clock::time_point end) {
    std::array<pollfd, 2> waiting{{{.fd = out_open_ ? out_ : -1, .events = POLLIN, .revents = 0},
                                   {.fd = err_open_ ? err_ : -1, .events = POLLIN, .revents = 0}}};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    if ((!out_open_ && !err_open_) || left <= 0 || poll(waiting.data(), 2, static_cast<int>(left)) <= 0) {
      return false;
    }
    if (waiting[0].revents != 0) {
      out_open_ = take(out_, result_.out);
    }
    if (waiting[1].revents != 0) {
      err_open_ = take(err_, result_.err);
    }
    return true;
  }

  static bool take(int fd, std::string& text) {
    std::array<char, 65536> buffer{};
    const auto got = read(fd, buffer.data(), buffer.size());
    if (got <= 0) {
      return false;
    }
    text.append(buffer.data(), static_cast<std::size_t>(got));
    return true;
  }

  pid_t pid_ = -1;
  int handle_ = -1;
  int out_ = -1;
  int err_ = -1;
  bool out_open_ = true;
  bool err_open_ = true;
  bool ended_ = false;
  std::chrono::steady_clock::time_point start_{};
  Result result_{};
};

inline Process::Result run_program(const std::vector<std::string>& argv, const Process::Environment& extra = {},
                                   const std::string& directory = ".",
                                   Process::Seconds deadline = Process::Seconds(120)) {
  return Process(argv, extra, directory).wait(deadline);
}

}  // namespace lockstep
