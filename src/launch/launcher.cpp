#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/base/log.h>
#include <lockstep/launch/launcher.h>

#include "base/descriptor.h"
#include "base/duration.h"
#include "base/event_log.h"
#include "base/option_check.h"
#include "base/run_files.h"
#include "base/terminal.h"
#include "base/text.h"
#include "environment/store_listener.h"
#include "ipc/progress_record.h"
#include "launch/descendants.h"
#include "launch/descriptor_limit.h"
#include "launch/goodput.h"
#include "launch/restart_policy.h"
#include "launch/worker_environment.h"
#include "supervise/signal_inbox.h"
#include "supervise/supervisor.h"
#include "supervise/terminal_queue.h"
#include "supervise/worker_process.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

/// A rebuild during the start replaces the file, but not the program that this opened.
Descriptor open_own_program() {
  Descriptor program(open("/proc/self/exe", O_PATH | O_CLOEXEC));
  if (!program.is_open()) {
    throw LaunchError(fmt::format("cannot start workers: /proc/self/exe: {}", std::strerror(errno)),
                      "mount /proc, or start one process per rank, e.g. with torchrun --no-python");
  }
  return program;
}

/// All attempts of one launch.
class Launch {
 public:
  explicit Launch(const LaunchRequest& request)
      : request_(request),
        launch_id_(random_id()),
        run_id_(request.run_id.empty() ? launch_id_ : request.run_id),
        own_program_(request.program.empty() ? open_own_program() : Descriptor()),
        descendants_(launch_id_, request.environment),
        policy_(request.max_restarts, /*is_on_one_machine=*/request.ranks_per_node.size() == 1),
        terminal_(std::make_unique<TerminalQueue>(
            /*shared_screen=*/request.terminal_status && isatty(STDOUT_FILENO) == 1)) {}
  ~Launch() {
    if (!terminal_->finish(signals_, stop_requested_)) {
      static_cast<void>(terminal_.release());  // its thread uses it as long as this process lives
    }
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  LaunchReport run() {
    const auto start = Clock::now();
    for (int attempt = 0;; ++attempt) {
      RestartDecision decision;
      LaunchReport report = run_attempt(attempt, decision);
      stop_requested_ = report.stop_requested;
      report.restarts = attempt;
      goodput_.add(report);
      if (!decision.restart) {
        conclude(report, decision, seconds_since(start));
        return report;
      }
      descendants_.end();
      if (const std::optional<ExitCode> stopped = wait_for_restart(attempt + 1, decision, report)) {
        report.exit_code = static_cast<int>(*stopped);
        report.stop_requested = stop_requested_ = true;
        report.ended_by_signal = true;
        return report;
      }
    }
  }

 private:
  LaunchReport run_attempt(int number, RestartDecision& decision) {
    const int first = first_rank(request_);
    const int ranks = local_world_size(request_);
    ProgressBoard progress(ranks);
    std::vector<RankDestination> destinations = open_destinations(number);
    std::vector<WorkerProcess> workers;
    {
      const StoreListener store = bind_store();
      const Attempt attempt{
          .number = number,
          .master_port = store.port,
          .run_id = run_id_,
          .launch_id = launch_id_,
          .terminal_width = request_.terminal_status ? probe_terminal(STDERR_FILENO, request_.environment).width : 0};
      for (int local = 0; local < ranks; ++local) {
        workers.emplace_back(WorkerCommand{.program = request_.program,
                                           .own_program = own_program_.get(),
                                           .argv = request_.argv,
                                           .environment = worker_environment(request_, attempt, local),
                                           .progress = progress.fd(),
                                           .store_socket = first + local == 0 ? store.socket.get() : -1,
                                           .cores = of_rank(request_.cores, local)});
        descendants_.add_worker(workers.back().pid());
      }
    }  // now only rank 0 has the socket: if it dies, no rank waits for an answer
    return supervise(std::move(workers), std::move(destinations), std::move(progress), signals_, *terminal_,
                     {.grace = request_.grace,
                      .terminal_status = request_.terminal_status,
                      .stall = {.warning = request_.stall_warning,
                                .deadline = request_.stall_deadline,
                                .rendezvous = request_.rendezvous_deadline},
                      .first_rank = first,
                      .world_size = world_size(request_),
                      .any_program = request_.any_program,
                      .each_turn = [this] { descendants_.reap(); },
                      .ended =
                          [&](const LaunchReport& report) {
                            decision = policy_.after(report);
                            note_failure(number, report, decision);
                          },
                      .what_is_left = [this] { return what_is_left(); }});
  }

  /// Nothing about it may hide the failure itself.
  std::string what_is_left() const {
    try {
      return request_.after_failure ? request_.after_failure(event_directory()) : std::string();
    } catch (const std::exception& error) {
      return fmt::format("what is saved cannot be told: {}", error.what());
    }
  }

  template <class T>
  static T of_rank(const std::vector<T>& values, int local_rank) {
    return values.empty() ? T{} : values.at(static_cast<std::size_t>(local_rank));
  }

  StoreListener bind_store() const {
    if (request_.node > 0) {
      return {.socket = Descriptor(), .port = request_.master_port};
    }
    if (request_.ranks_per_node.size() > 1) {
      warn_of_loopback(request_.master_addr);
    }
    const bool listening = !request_.any_program;  // which may listen on the port itself
    return bind_store_listener(request_.master_addr, request_.master_port, listening);
  }

  std::vector<RankDestination> open_destinations(int attempt) {
    std::vector<RankDestination> destinations;
    for (int local = 0; local < local_world_size(request_); ++local) {
      const auto file = request_.log_dir / run_id_ / fmt::format("attempt_{}", attempt) /
                        fmt::format("rank_{}.log", first_rank(request_) + local);
      const OutputRoute& route = of_rank(request_.routes, local);
      try {
        destinations.push_back(open_destination(route, real_file_system(), file));
      } catch (const IoError& error) {
        if (attempt == 0) {
          throw;
        }
        // A disk that is full by now must not end the training.
        say(fmt::format("warning: output of rank {} is not logged: {}", first_rank(request_) + local, error.what()));
        destinations.push_back({.route = route});
      }
    }
    return destinations;
  }

  void note_failure(int attempt, const LaunchReport& report, const RestartDecision& decision) {
    if (report.failed_rank < 0) {
      return;
    }
    write_event("failure", {{"attempt", std::int64_t{attempt}},
                            {"rank", std::int64_t{report.failed_rank}},
                            {"exit_code", std::int64_t{report.exit_code}},
                            {"step", report.step},
                            {"what", report.failure},
                            {"restart", decision.restart}});
  }

  /// Exit code for the signal that ended the wait.
  std::optional<ExitCode> wait_for_restart(int attempt, const RestartDecision& decision, const LaunchReport& report) {
    const std::int64_t wait_s = decision.wait.count();
    const std::string when = wait_s == 0 ? "now" : fmt::format("in {} s", wait_s);
    const std::string how =
        decision.halves ? ", with half the micro-batch" : fmt::format(" ({} left without progress)", policy_.left());
    say(fmt::format("restart {} {}{}: {}", attempt, when, how, first_line(report.failure)));
    const auto until = Clock::now() + decision.wait;
    while (true) {
      if (const std::optional<int> signal = signals_.take_stop()) {
        say("stopped before the restart");
        return *signal == SIGINT ? ExitCode::interrupted : ExitCode::stopped;
      }
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
      if (left.count() <= 0) {
        write_event(
            "restart",
            {{"attempt", std::int64_t{attempt}}, {"wait_s", wait_s}, {"halvings", std::int64_t{policy_.halvings()}}});
        return std::nullopt;
      }
      pollfd entry{.fd = signals_.fd(), .events = POLLIN, .revents = 0};
      poll(&entry, 1, static_cast<int>(left.count()));
    }
  }

  void conclude(const LaunchReport& report, const RestartDecision& decision, double wall_s) {
    if (report.restarts > 0) {
      say(goodput_.text(wall_s));
      write_event("goodput", {{"restarts", std::int64_t{report.restarts}},
                              {"steps_repeated", goodput_.steps_repeated()},
                              {"productive_s", goodput_.productive_s()},
                              {"wall_s", wall_s}});
    }
    if (!decision.reason.empty()) {
      say(fmt::format("not restarted: {}: {}", decision.reason, first_line(report.failure)));
    }
  }

  /// After what the ranks and their supervisor said. Does not wait for the terminal.
  void say(std::string text) {
    if (is_logged(LogLevel::info)) {
      terminal_->line(OutputStream::err, std::move(text));
    }
  }

  std::filesystem::path event_directory() const {
    return request_.event_directory ? request_.event_directory(launch_id_) : std::filesystem::path();
  }

  void write_event(std::string_view event, const EventFields& fields) const {
    std::error_code ignored;
    const auto directory = event_directory();
    if (!std::filesystem::is_directory(directory, ignored)) {
      return;
    }
    const std::unique_ptr<FileLock> lock = request_.event_lock ? request_.event_lock(directory) : nullptr;
    if (lock != nullptr || !request_.event_lock) {
      EventLog(real_file_system(), directory / kEventsName).write(event, fields);
    }
  }

  const LaunchRequest& request_;
  SignalInbox signals_{};  // created before the first worker, so that no request is lost
  const std::string launch_id_;
  const std::string run_id_;
  const Descriptor own_program_;
  Descendants descendants_;
  RestartPolicy policy_;
  Goodput goodput_{};
  bool stop_requested_ = false;
  // Of all attempts: a restart does not wait until the terminal has shown the last one.
  std::unique_ptr<TerminalQueue> terminal_;
};

void check(const LaunchRequest& request) {
  const std::string subject = "launch_workers";
  const auto nodes = request.ranks_per_node.size();
  OptionCheck(subject)
      .refuse_if(request.argv.empty(), "argv is empty, expected a command line")
      .expect("node", request.node, request.node >= 0 && static_cast<std::size_t>(request.node) < nodes,
              fmt::format("an index of ranks_per_node, whose size is {}", nodes))
      .throw_problems();
  const int ranks = local_world_size(request);
  const auto is_by_rank = [ranks](std::size_t size) { return size == 0 || std::cmp_equal(size, ranks); };
  const std::string by_rank = fmt::format("0 or {}, the number of ranks of this machine", ranks);
  OptionCheck(subject)
      .expect("the number of ranks of this machine", ranks, ranks >= 1, "1 or more")
      .refuse_if(nodes > 1 && (request.master_port <= 0 || request.run_id.empty()),
                 "several machines find each other by a port and a run id", "set master_port and run_id")
      .refuse_if(nodes > 1 && request.max_restarts != 0, "several machines cannot agree on a restart",
                 "leave max_restarts at 0")
      .expect("the size of routes", request.routes.size(), is_by_rank(request.routes.size()), by_rank)
      .expect("the size of cores", request.cores.size(), is_by_rank(request.cores.size()), by_rank)
      .throw_problems();
}

/// Without one, oneMKL ends a process before main() with its own message.
void check_working_directory() {
  std::error_code error;
  [[maybe_unused]] const auto directory = std::filesystem::current_path(error);
  if (error) {
    throw LaunchError(fmt::format("found no working directory ({}): it was deleted", error.message()),
                      "cd to one that exists, and start again", ExitCode::usage);
  }
}

}  // namespace

LaunchReport launch_workers(const LaunchRequest& request) {
  check(request);
  check_working_directory();
  raise_descriptor_limit(local_world_size(request), world_size(request));
  return Launch(request).run();
}

}  // namespace lockstep
