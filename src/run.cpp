// The stages of a program: parse -> resolve -> describe -> supervise ranks, or be a rank.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <lockstep/base/control.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/base/log.h>
#include <lockstep/environment/hardware.h>
#include <lockstep/environment/identity.h>
#include <lockstep/environment/launch_name.h>
#include <lockstep/launch/launcher.h>
#include <lockstep/run.h>
#include <lockstep/storage/checkpoint_dir.h>

#include "base/descriptor.h"
#include "base/duration.h"
#include "base/paths.h"
#include "base/run_files.h"
#include "base/run_pattern.h"
#include "base/standard_output.h"
#include "base/terminal.h"
#include "config/invocation.h"
#include "environment/job_end.h"
#include "environment/own_variables.h"
#include "failure/deadlines.h"
#include "launch/node_exchange.h"
#include "launch/own_words.h"
#include "launch/requeue.h"
#include "plan/batch_limit.h"
#include "plan/rank_shares.h"
#include "rank/signals.h"
#include "rank/terminate_handler.h"
#include "storage/run_choice.h"
#include "storage/run_directory.h"
#include "supervise/signal_inbox.h"
#include "trainer/output/run_end.h"
#include "worker.h"

namespace lockstep {

namespace {

// No rank has acted on a request to stop, so the launcher does what the main rank does. Returns the exit code.
int end_without_ranks(ExitCode code, const Plan& plan, const Identity& identity, const Variables& environment) {
  if (code == ExitCode::stopped && plan.config.dist.requeue && identity.node == 0) {
    queue_again(environment);
  }
  return static_cast<int>(code);
}

// `identity`: of this node, if a launcher started this process once per node.
int supervise(const Plan& plan, const Identity& identity, const std::vector<std::string>& argv,
              const Variables& environment) {
  if (plan.nodes > 1 && plan.config.dist.max_restarts > 0) {
    throw ConfigError(fmt::format("--dist.max_restarts {}: found {} nodes, but a program restarts its ranks on one "
                                  "node only",
                                  plan.config.dist.max_restarts, plan.nodes),
                      fmt::format("leave it out, and let {} restart the program", identity.launcher));
  }
  LaunchRequest request;
  request.argv = argv;
  request.ranks_per_node = identity.ranks_per_node;
  if (request.ranks_per_node.empty()) {
    request.ranks_per_node = {plan.local_world_size()};
  }
  request.node = identity.node;
  if (plan.nodes > 1) {
    request.master_addr = identity.master_addr;
    request.master_port = identity.master_port;
    request.run_id = identity.run_id;
  }
  request.threads_per_rank = plan.threads_per_rank;
  request.max_restarts = plan.config.dist.max_restarts;
  request.event_directory = [directory = run_directory(plan.config)](const std::string& launch) {
    const auto pattern = parse_run_pattern(directory);  // then the ranks choose a directory
    return pattern ? find_run_of(real_file_system(), *pattern, launch) : directory;
  };
  if (plan.config.checkpoint.enabled) {  // else steps in the directory are an earlier run's
    request.after_failure = [plan](const std::filesystem::path& directory) {
      std::error_code ignored;
      if (!std::filesystem::is_directory(directory, ignored)) {  // not chosen yet, or moved during the run
        return std::string();
      }
      const auto steps = CheckpointDir(real_file_system(), directory / kCheckpointsName).steps();
      return describe_saved(plan, directory.string(), steps.empty() ? std::nullopt : std::optional(steps.back()));
    };
  }
  request.event_lock = [](const auto& directory) { return try_lock_run(real_file_system(), directory); };
  if (!plan.config.report.log_dir.empty()) {
    request.log_dir = plan.config.report.log_dir;
    request.routes.assign(static_cast<std::size_t>(plan.local_world_size()),
                          {.out_in_file = true, .err_in_file = true});
  }
  request.grace = to_milliseconds(plan.config.dist.grace_s);
  request.stall_warning = to_milliseconds(plan.config.dist.stall_warn_s);
  request.stall_deadline = to_milliseconds(plan.config.dist.stall_timeout_s);
  request.rendezvous_deadline = to_milliseconds(plan.config.dist.init_timeout_s) + deadlines::kRanksSpeakFirst;
  // Workers plan again and may see different free memory, so they receive the chosen values.
  auto variables = environment.all();
  variables[own_variables::kDevices] = plan.config.devices.text();
  variables[own_variables::kDirectory] = working_directory().string();
  request.environment = Variables(std::move(variables));
  request.terminal_status = probe_terminal(STDERR_FILENO, environment).interactive;
  const LaunchReport report = launch_workers(request);
  return report.ended_by_signal
             ? end_without_ranks(static_cast<ExitCode>(report.exit_code), plan, identity, environment)
             : report.exit_code;
}

ExitCode stop_code(int signal) { return signal == SIGINT ? ExitCode::interrupted : ExitCode::stopped; }

// Not by `lockstep run`: the same program has planned, and tells what is left of the training after a failure.
bool launched_by_this_program(const std::optional<Identity>& identity) {
  return identity && identity->is_supervised() && !identity->devices.empty();
}

// The ranks train what this process has read and shown, also if the file is another one when they start. They read a
// longer file themselves.
Variables with_config_text(const Variables& environment, const std::optional<std::string>& text) {
  constexpr std::size_t kMost = 100 << 10;  // Linux has room for 128 KiB in a variable
  auto variables = environment.all();
  if (text && text->size() <= kMost) {
    variables[own_variables::kConfigText] = *text;
  }
  return Variables(std::move(variables));
}

// A run that will be requeued must reach its normal end.
EarlyStop early_stop(const Plan& plan, const std::optional<Identity>& identity) {
  return plan.config.dist.requeue                ? EarlyStop::wait
         : identity && identity->is_supervised() ? EarlyStop::die_of_signal
                                                 : EarlyStop::end_process;
}

// The ranks themselves read what did not fit when they know each other.
Plan with_limit_of_this_machine(const Plan& plan) {
  return with_kept_limit(plan, kept_batch_limit(real_file_system(), run_directory(plan.config)));
}

// Shown once per run.
void show(const Plan& plan, const std::optional<Identity>& identity) {
  if ((identity && identity->rank != 0) || launched_by_this_program(identity)) {
    return;
  }
  if (is_logged(LogLevel::info)) {
    write_line(describe(with_limit_of_this_machine(plan)));
  } else {
    std::for_each(plan.warnings.begin(), plan.warnings.end(), log_warning);
  }
}

// Nodes may start different numbers of ranks if their numbers of GPUs differ.
RanksPerNode exchange_with_other_nodes(const Identity& identity, const Plan& plan, SignalInbox& signals) {
  const NodeExchange exchange{.node = identity.node,
                              .nodes = identity.nodes,
                              .address = identity.master_addr,
                              .port = identity.master_port,
                              .run_id = identity.run_id};
  return exchange_ranks_per_node(exchange, plan.local_world_size(), to_milliseconds(plan.config.dist.init_timeout_s),
                                 signals);
}

// Returns the exit code if this process starts the ranks, or if a stop was requested before; nullopt: it is the rank.
// With several nodes, the identity and the plan get the numbers of ranks of all nodes.
std::optional<int> start_ranks(Plan& plan, std::optional<Identity>& identity, const std::function<Plan()>& make_plan,
                               const std::vector<std::string>& argv, const Variables& environment) {
  std::optional<SignalInbox> held;  // the launcher handles signals that arrived before its start
  if (starts_ranks(identity) && plan.nodes > 1) {
    held.emplace();
    RanksPerNode told = exchange_with_other_nodes(*identity, plan, *held);
    if (told.signal) {
      return end_without_ranks(stop_code(*told.signal), plan, *identity, environment);
    }
    identity->ranks_per_node = std::move(told.ranks);
    plan = make_plan();
  }
  const bool restarts = (plan.config.memory.halve_batch && plan.nodes == 1) || plan.config.dist.max_restarts > 0;
  if (starts_ranks(identity) && (plan.world_size > plan.nodes || restarts)) {
    if (!held) {
      held.emplace();  // a user who reads the table may request a stop
    }
    show(plan, identity);
    return supervise(plan, identity.value_or(Identity{}), own_words(argv), environment);
  }
  if (held) {
    if (const auto signal = held->take_stop()) {
      return end_without_ranks(stop_code(*signal), plan, *identity, environment);
    }
  }
  return std::nullopt;
}

int run_program(TrainConfig defaults, const Flags& flags, const std::vector<std::string>& argv,
                const std::function<void(Session&)>& worker) {
  const Variables environment = read_environment();
  // Where the launcher was: main may have changed the directory there, and again in the rank.
  if (const auto directory = environment.get(own_variables::kDirectory);
      directory && !directory->empty() && working_directory() != *directory) {
    std::filesystem::current_path(*directory);
  }
  const std::string program = std::filesystem::path(argv.front()).filename().string();
  if (defaults.run_name.empty()) {
    defaults.run_name = program;
  }
  const bool is_rank = environment.has(own_variables::kControlFd);
  std::optional<std::string> config_text = is_rank ? environment.get(own_variables::kConfigText) : std::nullopt;
  const Invocation invocation = parse_invocation(defaults, std::span(argv).subspan(1), environment, flags, config_text);
  if (invocation.help) {
    write_output(help_text(program, defaults, flags, probe_terminal(STDOUT_FILENO, environment).width));
    return 0;
  }
  if (invocation.help_all) {
    write_output(help_all_text(program, defaults, flags, probe_terminal(STDOUT_FILENO, environment).width));
    return 0;
  }
  if (invocation.print_config) {
    write_output(print_config_text(invocation, flags));
    return 0;
  }
  auto identity = detect_identity(environment);
  const Hardware hardware =
      invocation.hardware_file.empty() ? probe_hardware(environment) : read_hardware(invocation.hardware_file);
  const LaunchFacts facts{.launch_name = launch_name(environment, identity),
                          .program = program,
                          .program_values = program_values(flags),
                          .started_by_program = launched_by_this_program(identity),
                          .job_end = job_end(environment)};
  // At the default the level stays that which the program may have set.
  if (const LogLevel level = invocation.config.report.log_level; level != LogLevel::info) {
    set_log_level(level);
  }
  const auto make_plan = [&] {
    Plan plan = resolve(invocation.config, hardware, identity, facts);
    plan.warnings.insert(plan.warnings.begin(), invocation.warnings.begin(), invocation.warnings.end());
    return plan;
  };
  Plan plan = make_plan();
  if (plan.config.dist.requeue && requeue_command(environment).empty()) {
    throw ConfigError("--dist.requeue: found no SLURM_JOB_ID, expected a Slurm job",
                      "leave it out, or submit with sbatch");
  }
  if (invocation.dry_run) {
    write_output(dry_run_text(with_limit_of_this_machine(plan), identity));
    return 0;
  }
  if (const auto code = start_ranks(plan, identity, make_plan, argv, with_config_text(environment, config_text))) {
    return *code;
  }
  TrainControl control;
  // Signals are handled from the table on, as in start_ranks(). A launcher's SIGTERM must not interrupt the report of a
  // failure.
  const SignalScope signals(control, early_stop(plan, identity));
  show(plan, identity);
  return be_a_worker(plan, identity.value_or(Identity{}), environment, control, worker);
}

}  // namespace

int run(const TrainConfig& defaults, const Flags& flags, int argc, char** argv,
        const std::function<void(Session&)>& worker) {
  static std::atomic<bool> called{false};
  open_standard_descriptors();
  try {
    if (argc < 1) {
      throw ConfigError("lockstep::run: argv is empty, expected the name of the program first",
                        "pass argc and argv of main");
    }
    if (called.exchange(true)) {
      throw ConfigError("lockstep::run was called twice in this process",
                        "call it once, and train as often as you like inside its worker function");
    }
    const int code = run_program(defaults, flags, {argv, argv + argc}, worker);
    ignore_stops_at_exit();
    return code;
  } catch (...) {
    const Failure failure = current_failure();
    print_error(failure.text);
    return failure.code;
  }
}

int run(const TrainConfig& defaults, int argc, char** argv, const std::function<void(Session&)>& worker) {
  return run(defaults, Flags(), argc, argv, worker);
}

}  // namespace lockstep
