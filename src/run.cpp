// The map of a program's life: parse -> resolve -> describe -> supervise ranks, or be one.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/environment/hardware.h>
#include <lockstep/environment/identity.h>
#include <lockstep/launch/launcher.h>
#include <lockstep/run.h>

#include "base/duration.h"
#include "base/terminal.h"
#include "environment/job_end.h"
#include "launch/requeue.h"
#include "rank/failure.h"
#include "supervise/signal_inbox.h"
#include "worker.h"

namespace lockstep {

namespace {

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
  request.grace = to_milliseconds(plan.config.dist.grace_s);
  request.stall_warning = to_milliseconds(plan.config.dist.stall_warn_s);
  request.stall_deadline = to_milliseconds(plan.config.dist.stall_timeout_s);
  // Workers plan again, and find other free memory then: they are told what was chosen.
  auto variables = environment.all();
  variables["LOCKSTEP_DEVICES"] = plan.config.devices.text();
  request.environment = Variables(std::move(variables));
  request.terminal_status = probe_terminal(STDERR_FILENO, environment).interactive;
  return launch_workers(request).exit_code;
}

// Once per run; ranks of our own launcher have been shown it.
void show(const Plan& plan, const std::optional<Identity>& identity) {
  const bool launched_by_us = identity && identity->control_fd >= 0;
  if ((!identity || identity->rank == 0) && !launched_by_us) {
    fmt::print(stderr, "{}\n", describe(plan));
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
  Plan plan = resolve(invocation.config, hardware, identity);
  plan.job_end = job_end(environment);
  if (plan.config.dist.requeue && requeue_command(environment).empty()) {
    throw ConfigError("--dist.requeue: found no SLURM_JOB_ID, expected a Slurm job",
                      "leave it out, or submit with sbatch");
  }
  if (invocation.dry_run) {
    fmt::print("{}", describe(plan));
    return 0;
  }
  if (starts_ranks(identity) && plan.local_world_size() > 1) {
    const SignalInbox held;  // who reads the table may ask for a stop: the launcher takes up what came before it
    show(plan, identity);
    return supervise(plan, identity.value_or(Identity{}), argv, environment);
  }
  show(plan, identity);
  return be_a_worker(plan, identity.value_or(Identity{}), environment, worker);
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
