// The map of a program's life: parse -> resolve -> describe -> supervise ranks, or be one.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/base/log.h>
#include <lockstep/environment/hardware.h>
#include <lockstep/environment/identity.h>
#include <lockstep/launch/launcher.h>
#include <lockstep/run.h>

#include "base/terminal.h"
#include "base/text.h"
#include "control/channel.h"
#include "control/progress_record.h"
#include "environment/error_file.h"
#include "launch/requeue.h"
#include "rank/crash_handler.h"
#include "rank/failure.h"
#include "rank/orders.h"
#include "rank/signals.h"
#include "report/console.h"
#include "world/guard.h"
#include "world/out_of_memory.h"

namespace lockstep {

namespace {

int code_of(ExitCode code) { return static_cast<int>(code); }

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

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

// `identity`: of this node, where a launcher started this process once per node.
int supervise(const Plan& plan, const Identity& identity, const std::vector<std::string>& argv,
              const Variables& environment) {
  if (plan.nodes > 1 && plan.config.dist.max_restarts > 0) {
    throw ConfigError(fmt::format("--dist.max_restarts {}: found {} nodes, our launcher restarts the ranks of one",
                                  plan.config.dist.max_restarts, plan.nodes),
                      fmt::format("leave it out, and let {} start the program again", identity.launcher));
  }
  LaunchRequest request;
  request.argv = argv;
  request.ranks_per_node.assign(static_cast<std::size_t>(plan.nodes), plan.local_world_size());
  request.node = identity.node;
  if (plan.nodes > 1) {
    request.master_addr = identity.master_addr;
    request.master_port = identity.master_port;
    request.run_id = identity.run_id;
  }
  request.threads_per_rank = plan.threads_per_rank;
  request.max_restarts = plan.config.dist.max_restarts;
  request.event_log = std::filesystem::path(run_directory(plan.config)) / "events.jsonl";
  if (!plan.config.report.log_dir.empty()) {
    request.log_dir = plan.config.report.log_dir;
    request.routes.assign(static_cast<std::size_t>(plan.local_world_size()),
                          {.out_in_file = true, .err_in_file = true});
  }
  request.grace = milliseconds(plan.config.dist.grace_s);
  request.stall_warning = milliseconds(plan.config.dist.stall_warn_s);
  request.stall_deadline = milliseconds(plan.config.dist.stall_timeout_s);
  // Workers plan again, and find other free memory then: they are told what was chosen.
  auto variables = environment.all();
  variables["LOCKSTEP_DEVICES"] = plan.config.devices.text();
  request.environment = Variables(std::move(variables));
  request.terminal_status = probe_terminal(STDERR_FILENO, environment).interactive;
  return launch_workers(request).exit_code;
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

void print_error(std::string_view text) {
  const std::string label = log_world_size() > 1 ? fmt::format("[rank{}]: ", log_rank()) : std::string();
  write_line(label + std::string(text));
}

// What ends a rank, told to whoever watches it: our supervisor, or the other ranks and torchrun.
void report_failure(const Message& failure, const Identity& identity, const Channel* channel, Guard* guard) {
  constexpr std::chrono::seconds kPatience{1};  // for the news who failed first
  if (channel != nullptr) {
    channel->send(failure);
  } else if (const auto cause =
                 failure.secondary && guard != nullptr ? guard->first_failure(kPatience) : std::nullopt) {
    write_line(fmt::format("[rank{}]: stopped: {}", identity.rank, *cause));
    guard->wait_for_launcher();
  } else {
    print_error(failure.text);
    write_error_file(identity.error_file, failure.text);
    if (guard != nullptr) {
      guard->report(failure.text);
    }
  }
}

// The run is saved: not being queued again is no reason to call it failed.
void queue_again(const Variables& environment) {
  try {
    run_requeue(requeue_command(environment), environment);
  } catch (const Error& error) {
    log_warning(error_text(error));
  }
}

int be_a_rank(const Plan& plan, Identity identity, const Variables& environment,
              const std::function<void(Session&)>& worker) {
  const std::shared_ptr<Channel> channel = take_channel(identity);
  ProgressBoard progress = identity.progress_fd >= 0 ? ProgressBoard(identity.progress_fd, identity.local_rank)
                                                     : ProgressBoard(identity.local_world_size);
  identity.progress_fd = progress.fd();  // the World maps it again
  const CrashHandler crash_handler(identity.rank, &progress[identity.local_rank]);
  std::optional<Orders> orders;
  std::optional<TerminateScope> terminate;
  if (channel) {
    orders.emplace(channel);
    terminate.emplace(*channel);
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
    if (!channel && world.size() > 1) {
      guard.emplace(world);
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

int run_program(TrainConfig defaults, const Flags& flags, const std::vector<std::string>& argv,
                const std::function<void(Session&)>& worker) {
  const Variables environment = read_environment();
  const std::string program = std::filesystem::path(argv.front()).filename().string();
  if (defaults.run_name.empty()) {
    defaults.run_name = program;
  }
  const Invocation invocation = parse_invocation(defaults, std::span(argv).subspan(1), environment, flags);
  if (invocation.help) {
    fmt::print("{}", help_text(program, defaults, flags));
    return 0;
  }
  if (invocation.print_config) {
    fmt::print("{}", print_config_text(invocation, flags));
    return 0;
  }
  const auto identity = detect_identity(environment);
  const Hardware hardware =
      invocation.hardware_file.empty() ? probe_hardware(environment) : read_hardware(invocation.hardware_file);
  const Plan plan = resolve(invocation.config, hardware, identity);
  if (plan.config.dist.requeue && requeue_command(environment).empty()) {
    throw ConfigError("--dist.requeue: found no SLURM_JOB_ID, expected a Slurm job",
                      "leave it out, or submit with sbatch");
  }
  if (invocation.dry_run) {
    fmt::print("{}", describe(plan));
    return 0;
  }
  const bool launched_by_us = identity && identity->control_fd >= 0;
  if ((!identity || identity->rank == 0) && !launched_by_us) {
    fmt::print(stderr, "{}\n", describe(plan));
  }
  if (starts_ranks(identity) && plan.local_world_size() > 1) {
    return supervise(plan, identity.value_or(Identity{}), argv, environment);
  }
  return be_a_rank(plan, identity.value_or(Identity{}), environment, worker);
}

}  // namespace

int run(const TrainConfig& defaults, const Flags& flags, int argc, char** argv,
        const std::function<void(Session&)>& worker) {
  static std::atomic<bool> called{false};
  try {
    if (called.exchange(true)) {
      throw ConfigError("lockstep::run was called twice in this process",
                        "call it once, and train as often as you like inside its worker function");
    }
    return run_program(defaults, flags, {argv, argv + argc}, worker);
  } catch (...) {
    const Message failure = current_failure();
    print_error(failure.text);
    return failure.code;
  }
}

int run(const TrainConfig& defaults, int argc, char** argv, const std::function<void(Session&)>& worker) {
  return run(defaults, Flags(), argc, argv, worker);
}

}  // namespace lockstep
