#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <string>

#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/base/log.h>
#include <lockstep/report/metric_sink.h>

#include "base/descriptor.h"
#include "base/exec_arguments.h"
#include "base/json.h"
#include "base/text.h"
#include "report/metric_file.h"

namespace lockstep {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kMostPending = std::size_t{64} << 20;  // bytes

/// A number or a truth value is one in JSON, too. What JSON cannot write ("inf", "" for no number) is sent as a text.
Json value_of(const RunSetting& setting) {
  if (setting.is_text) {
    return setting.text;
  }
  const Json value = Json::parse(setting.text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? Json(setting.text) : value;
}

/// True if the descriptor is ready for `events` before `deadline`.
bool wait_until(int fd, short events, steady_clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now()).count();
    pollfd watched{.fd = fd, .events = events, .revents = 0};
    const int ready = ::poll(&watched, 1, static_cast<int>(std::max<decltype(left)>(left, 0)));
    if (ready > 0 || (ready < 0 && errno != EINTR)) {
      return ready > 0;
    }
    if (steady_clock::now() >= deadline) {
      return false;
    }
  }
}

class CommandSink final : public MetricSink {
 public:
  CommandSink(const std::string& command, const Variables& environment, std::chrono::milliseconds patience)
      : command_(command), patience_(patience) {
    int ends[2] = {};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      fail(std::strerror(errno));
      return;
    }
    input_ = Descriptor(ends[0]);
    const Descriptor output(ends[1]);
    if (const int error = start(output.get(), environment); error != 0) {
      fail(std::strerror(error));
      return;
    }
    process_ = open_process(pid_);
  }

  ~CommandSink() override {
    if (pid_ < 0) {
      return;
    }
    if (std::uncaught_exceptions() > exceptions_) {
      return;  // the other ranks wait to hear of it; the program ends at the end of its input
    }
    const auto deadline = steady_clock::now() + patience_;
    while (!pending_.empty() && input_.is_open() && wait_until(input_.get(), POLLOUT, deadline)) {
      send_pending();
    }
    input_.close();  // the end of its input
    if (process_.is_open() && !wait_until(process_.get(), POLLIN, deadline)) {
      log_warning(fmt::format("report.command '{}' did not end {} after its input: it is ended", printable(command_),
                              in_seconds(patience_)));
      ::kill(-pid_, SIGKILL);
    }
    int status = 0;
    retry([&] { return ::waitpid(pid_, &status, 0); });
    if (!failed_ && WIFEXITED(status) && WEXITSTATUS(status) != 0) {
      log_warning(fmt::format("report.command '{}' ended with code {}", printable(command_), WEXITSTATUS(status)));
    }
  }

  void write(std::int64_t step, std::span<const MetricValue> metrics) override {
    require_distinct(metrics);
    send(metric_row(step, metrics));
  }

  void send(const Json& line) {
    if (failed_ || !input_.is_open()) {
      return;
    }
    pending_ += dump_json(line) + "\n";
    send_pending();
    if (pending_.size() > kMostPending) {
      fail("it does not read its input");
    }
  }

 private:
  int start(int input, const Variables& environment) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
    // A group of its own: Ctrl-C ends the training, and the end of its input ends the program.
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    std::vector<std::string> words{"/bin/sh", "-c", command_};
    std::vector<std::string> entries = environment_entries(environment);
    const auto argv = pointers_to(words);
    const auto envp = pointers_to(entries);
    const int error = posix_spawn(&pid_, argv[0], &actions, &attributes, argv.data(), envp.data());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return error;
  }

  void send_pending() {
    std::size_t sent = 0;
    while (sent < pending_.size()) {
      const ssize_t bytes =
          ::send(input_.get(), pending_.data() + sent, pending_.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (bytes >= 0) {
        sent += static_cast<std::size_t>(bytes);
      } else if (errno != EINTR) {
        if (errno != EAGAIN) {
          fail("it does not read its input any more");
          return;
        }
        break;
      }
    }
    pending_.erase(0, sent);
  }

  // A missing report does not end the run.
  void fail(const std::string& why) {
    log_warning(fmt::format("report.command '{}': {}; the run goes on without it", printable(command_), why));
    failed_ = true;
    pending_.clear();
    input_.close();
  }

  std::string command_;
  std::chrono::milliseconds patience_;
  int exceptions_ = std::uncaught_exceptions();
  Descriptor input_{};    // of the program; closed: nothing can be sent
  Descriptor process_{};  // readable when the program has ended
  pid_t pid_ = -1;
  std::string pending_{};
  bool failed_ = false;
};

}  // namespace

std::unique_ptr<MetricSink> command_sink(const std::string& command, const Variables& environment,
                                         const std::filesystem::path& run_dir, std::int64_t resume_step,
                                         std::span<const RunSetting> settings, std::chrono::milliseconds patience) {
  auto sink = std::make_unique<CommandSink>(command, environment, patience);
  Json values = Json::object();
  for (const RunSetting& setting : settings) {
    values[setting.name] = value_of(setting);
  }
  sink->send(Json{{"run_dir", run_dir.string()}, {"resume_step", resume_step}, {"settings", values}});
  return sink;
}

}  // namespace lockstep
