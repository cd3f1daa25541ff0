#include "worker.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/base/log.h>
#include <lockstep/session.h>

#include "base/duration.h"
#include "base/terminal.h"
#include "base/text.h"
#include "control/channel.h"
#include "control/progress_record.h"
#include "environment/error_file.h"
#include "environment/process_name.h"
#include "launch/core_binding.h"
#include "launch/requeue.h"
#include "rank/crash_handler.h"
#include "rank/failure.h"
#include "rank/orders.h"
#include "rank/signals.h"
#include "report/console.h"
#include "world/guard.h"
#include "world/out_of_memory.h"

namespace lockstep {

void print_error(std::string_view text) {
  const std::string label = log_world_size() > 1 ? fmt::format("[rank{}]: ", log_rank()) : std::string();
  write_line(label + std::string(text));
}

namespace {

int code_of(ExitCode code) { return static_cast<int>(code); }

// `--fresh`: the old run is kept under the next free number.
void set_old_run_aside(const std::filesystem::path& directory) {
  FileSystem& fs = real_file_system();
  if (!fs.exists(directory)) {
    return;
  }
  for (int number = 1;; ++number) {
    const std::filesystem::path aside = fmt::format("{}.{}", directory.string(), number);
    if (!fs.exists(aside)) {
      fs.rename(directory, aside);
      log_info(fmt::format("--fresh: the old run is {} now", aside.string()));
      return;
    }
  }
}

std::shared_ptr<Console> make_console(const std::shared_ptr<Channel>& channel, const Variables& environment) {
  if (channel) {
    const auto width = parse_int(environment.get("LOCKSTEP_TERMINAL_WIDTH").value_or("0")).value_or(0);
    return channel_console(channel, static_cast<int>(width));
  }
  const Terminal terminal = probe_terminal(STDERR_FILENO, environment);
  return terminal_console(terminal.interactive, terminal.width);
}

// The supervisor's descriptor is ours alone: neither user code nor its children shall find it.
std::shared_ptr<Channel> take_channel(const Identity& identity) {
  if (identity.control_fd < 0) {
    return nullptr;
  }
  for (const char* name : {"LOCKSTEP_CONTROL_FD", "LOCKSTEP_STORE_FD", "LOCKSTEP_PROGRESS_FD", "LOCKSTEP_RESTART",
                           "LOCKSTEP_RUN_ID", "LOCKSTEP_TERMINAL_WIDTH", "LOCKSTEP_DEVICES"}) {
    unsetenv(name);
  }
  for (const int fd : {identity.control_fd, identity.progress_fd, identity.store_fd}) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  if (identity.store_fd >= 0) {
    listen(identity.store_fd, SOMAXCONN);  // `lockstep run` left that to us: earlier ranks shall not be refused
  }
  return std::make_shared<Channel>(identity.control_fd);
}

// A launcher that binds ranks to cores shows each its own only: the plan, made by one rank alone, divides them again.
void use_bound_cores(World& world) {
  const auto cores = allowed_cores();
  const std::string machine = this_process().machine;
  std::vector<std::vector<int>> neighbours;
  for (const std::string& text : world.gather(fmt::format("{}\n{}", format_ranges(cores), machine))) {
    if (const auto end = text.find('\n'); text.substr(end + 1) == machine) {
      neighbours.push_back(parse_core_list(text.substr(0, end)));
    }
  }
  if (const auto threads = threads_of_bound_ranks(neighbours)) {
    at::set_num_threads(*threads);
  }
}

/// Another rank's failure ends this one.
void say_stopped(const std::string& cause, const Identity& identity, const Channel* channel) {
  if (channel != nullptr) {
    channel->send({.kind = Message::Kind::failure,
                   .text = "stopped: " + cause,
                   .code = code_of(ExitCode::peer_lost),
                   .secondary = true});
  } else {
    write_line(fmt::format("[rank{}]: stopped: {}", identity.rank, cause));
  }
}

// What ends a rank, told to whoever watches it: our supervisor, or torchrun, and the other ranks.
void report_failure(const Message& failure, const Identity& identity, const Channel* channel, Guard* guard) {
  constexpr std::chrono::seconds kPatience{1};  // for the news who failed first
  if (const auto cause = failure.secondary && guard != nullptr ? guard->first_failure(kPatience) : std::nullopt) {
    say_stopped(*cause, identity, channel);
    if (channel == nullptr) {
      guard->wait_for_launcher();
    }
    return;
  }
  if (channel != nullptr) {
    channel->send(failure);
  } else {
    print_error(failure.text);
    write_error_file(identity.error_file, failure.text);
  }
  if (guard != nullptr) {
    guard->report(failure.text, failure.code);
  }
}

Guard::Options guard_options(const Plan& plan, const Identity& identity, const Channel* channel) {
  return {.nodes = plan.nodes,
          .heartbeat_timeout = to_milliseconds(plan.config.dist.heartbeat_timeout_s),
          .say = [&identity, channel](const std::string& cause) { say_stopped(cause, identity, channel); }};
}

// The run is saved: not being queued again is no reason to call it failed.
void queue_again(const Variables& environment) {
  try {
    run_requeue(requeue_command(environment), environment);
  } catch (const Error& error) {
    log_warning(error_text(error));
  }
}

}  // namespace

int be_a_worker(const Plan& plan, Identity identity, const Variables& environment,
                const std::function<void(Session&)>& worker) {
  const std::shared_ptr<Channel> channel = take_channel(identity);
  ProgressBoard progress = identity.progress_fd >= 0 ? ProgressBoard(identity.progress_fd, identity.local_rank)
                                                     : ProgressBoard(identity.local_world_size);
  identity.progress_fd = progress.fd();  // the World maps it again
  const CrashHandler crash_handler(identity.rank, &progress[identity.local_rank]);
  const LastWords last_words(progress[identity.local_rank], [&](const Message& failure) {
    set_log_rank(identity.rank, identity.world_size);  // in whatever thread this is
    report_failure(failure, identity, channel.get(), /*guard=*/nullptr);
  });
  std::optional<Orders> orders;
  if (channel) {
    orders.emplace(channel);
  }
  if (!environment.has("OMP_NUM_THREADS")) {
    at::set_num_threads(plan.threads_per_rank);
  }
  TrainControl control;
  const SignalScope signals(control);  // a launcher's SIGTERM does not cut off the report of a failure
  std::optional<Session> session;
  std::optional<Guard> guard;
  const auto fail = [&](const std::string& advice) {
    Message failure = current_failure();
    failure.text += advice;
    report_failure(failure, identity, channel.get(), guard ? &*guard : nullptr);
    if (plan.world_size > 1) {
      // The ordinary way out joins threads of collectives that may never end.
      std::fflush(nullptr);
      _exit(failure.code);
    }
    return failure.code;
  };
  try {
    session.emplace(plan, World::connect(plan, identity), control, make_console(channel, environment));
    World& world = session->world;
    if (world.size() > 1 && (!channel || plan.nodes > 1)) {
      guard.emplace(world, guard_options(plan, identity, channel.get()));
    }
    if (world.size() > 1 && !channel && !environment.has("OMP_NUM_THREADS")) {
      use_bound_cores(world);
    }
    if (plan.config.fresh && identity.restart == 0) {
      world.main_first("--fresh", [&] {
        if (world.is_main()) {
          set_old_run_aside(run_directory(plan.config));
        }
      });
    }
    at::manual_seed(plan.config.seed);  // the same on all ranks: they build the same module
    worker(*session);
    // Nobody leaves, and takes the store along, while others still work.
    world.main_first("end of run", [] {});
    guard.reset();  // all have worked: from now on an ending process is no failure
    world.barrier("end of run");
    const StopKind stop = control.agreed();
    const int code = code_of(stop == StopKind::interrupt   ? ExitCode::interrupted
                             : stop == StopKind::terminate ? ExitCode::stopped
                                                           : ExitCode::ok);
    if (stop == StopKind::terminate && plan.config.dist.requeue && world.is_main()) {
      queue_again(environment);
    }
    progress[identity.local_rank].set_phase(Phase::teardown);
    if (channel) {
      channel->send({.kind = Message::Kind::finished, .text = {}, .code = code, .secondary = false});
    }
    return code;
  } catch (const std::exception& error) {
    return fail(out_of_memory_hint(error, plan, identity.local_rank));
  } catch (...) {
    return fail({});
  }
}

}  // namespace lockstep
