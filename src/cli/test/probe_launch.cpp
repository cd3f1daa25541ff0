#include "cli/test/probe_launch.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/descriptor.h"
#include "base/duration.h"
#include "cli/installed_files.h"
#include "supervise/worker_process.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using Path = std::filesystem::path;

constexpr std::chrono::seconds kMostForTheEnd{5};

int milliseconds_until(Clock::time_point end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(left, 0));
}

/// Appends what can be read now. False: the end of the stream.
bool read_available(int fd, std::string& text) {
  std::array<char, 65536> buffer{};
  while (true) {
    const ssize_t size = read(fd, buffer.data(), buffer.size());
    if (size > 0) {
      text.append(buffer.data(), static_cast<std::size_t>(size));
    } else if (size == 0 || errno != EINTR) {
      return size < 0 && errno == EAGAIN;
    }
  }
}

class Launch {
 public:
  Launch(const ProbeCommand& command, Clock::time_point deadline, SignalInbox& signals)
      : deadline_(deadline),
        signals_(signals),
        program_(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)),
        process_(command_line(command)) {}

  ProbeOutcome run() {
    while (!wait_for_news()) {
    }
    // `lockstep run` may be killed: its watcher then kills the ranks.
    const bool is_killed = outcome_.timed_out || outcome_.signal;
    if (is_killed) {
      process_.kill_group();
    }
    const ExitStatus status = process_.reap();
    outcome_.code = status.signal != 0 ? 128 + status.signal : status.code;
    read_available(process_.errors().get(), outcome_.errors);
    read_lines();
    outcome_.ending_s = seconds_since(last_line_);
    wait_for_ranks();
    return std::move(outcome_);
  }

 private:
  WorkerCommand command_line(const ProbeCommand& command) const {
    std::vector<std::string> argv{
        "lockstep", "run", "--nproc-per-node", fmt::format("{}", command.ranks), "--", command.probe.string()};
    argv.insert(argv.end(), command.flags.begin(), command.flags.end());
    return {.own_program = program_.get(), .argv = std::move(argv), .environment = command.environment};
  }

  /// True: the launch has ended, or has to.
  bool wait_for_news() {
    std::array<pollfd, 4> waiting{{{.fd = process_.pidfd(), .events = POLLIN, .revents = 0},
                                   {.fd = signals_.fd(), .events = POLLIN, .revents = 0},
                                   {.fd = process_.output().get(), .events = POLLIN, .revents = 0},
                                   {.fd = process_.errors().get(), .events = POLLIN, .revents = 0}}};
    const int ready = poll(waiting.data(), waiting.size(), milliseconds_until(deadline_));
    if (ready < 0 && errno == EINTR) {
      return false;
    }
    outcome_.timed_out = ready <= 0;
    outcome_.signal = signals_.take_stop();
    if (waiting[2].revents != 0) {
      read_lines();
    }
    if (waiting[3].revents != 0 && !read_available(process_.errors().get(), outcome_.errors)) {
      process_.errors().close();
    }
    return outcome_.timed_out || outcome_.signal || waiting[0].revents != 0;
  }

  /// The launcher writes "[rank0]: " before each line.
  void read_lines() {
    if (!read_available(process_.output().get(), output_)) {
      process_.output().close();
    }
    for (std::size_t end = output_.find('\n'); end != std::string::npos; end = output_.find('\n')) {
      const std::string line = output_.substr(0, end);
      output_.erase(0, end + 1);
      if (const std::size_t begin = line.find('{'); begin != std::string::npos) {
        take(line.substr(begin));
      }
    }
  }

  void take(const std::string& text) {
    Json line;
    try {
      line = parse_json(text);
    } catch (const std::runtime_error&) {
      return;  // libraries write to standard output, too
    }
    if (line.value("measured", "") == "met") {
      outcome_.met_s = seconds_since(start_);
      for (const int pid : line.at("pids")) {
        ranks_.emplace_back(pid, open_process(pid));
      }
    }
    last_line_ = Clock::now();
    outcome_.lines.push_back(std::move(line));
  }

  void wait_for_ranks() {
    const auto end = Clock::now() + kMostForTheEnd;
    for (const auto& [pid, descriptor] : ranks_) {
      pollfd ended{.fd = descriptor.get(), .events = POLLIN, .revents = 0};
      if (descriptor.is_open() && poll(&ended, 1, milliseconds_until(end)) != 1) {
        outcome_.left_behind.push_back(pid);
      }
    }
  }

  Clock::time_point deadline_;
  SignalInbox& signals_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_line_ = start_;
  Descriptor program_;
  WorkerProcess process_;
  std::string output_{};  // not yet a whole line
  std::vector<std::pair<int, Descriptor>> ranks_{};
  ProbeOutcome outcome_{};
};

}  // namespace

const Json* ProbeOutcome::measured(std::string_view name) const {
  const auto found = std::ranges::find_if(lines, [&](const Json& line) { return line.value("measured", "") == name; });
  return found == lines.end() ? nullptr : &*found;
}

Path find_probe() {
  const Path probe = beside_this_program(LOCKSTEP_PROBE);
  if (access(probe.c_str(), X_OK) != 0) {
    throw LaunchError(
        fmt::format("cannot find {}, which has the ranks of lockstep test", probe.string()),
        "install the whole package, or build the target lockstep_probe: a build without LibTorch has none",
        ExitCode::not_found);
  }
  return probe;
}

ProbeOutcome launch_probe(const ProbeCommand& command, Clock::time_point deadline, SignalInbox& signals) {
  return Launch(command, deadline, signals).run();
}

}  // namespace lockstep
