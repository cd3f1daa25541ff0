#include <algorithm>
#include <atomic>
#include <utility>

#include <fmt/format.h>

#include <ATen/Context.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/base/variables.h>
#include <lockstep/config/config_io.h>
#include <lockstep/environment/hardware.h>
#include <lockstep/environment/launch_name.h>
#include <lockstep/session.h>

#include "base/duration.h"
#include "base/text.h"
#include "checkpoint/run_hold.h"
#include "report/console.h"
#include "world/rendezvous.h"

namespace lockstep {
namespace {

/// Messages name a setting by its flag. In a program without flags it is a field of the configuration: "--optim.lr" ->
/// "config.optim.lr".
std::string with_field_names(std::string text) {
  constexpr std::string_view kDashes = "--";
  constexpr std::string_view kField = "config.";
  const auto fields = config_values({});
  for (auto at = text.find(kDashes); at != std::string::npos; at = text.find(kDashes, at + 1)) {
    const auto begin = at + kDashes.size();
    const auto end = std::min(text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.", begin), text.size());
    std::string_view name = std::string_view(text).substr(begin, end - begin);
    name = name.substr(0, name.find_last_not_of('.') + 1);
    if (std::any_of(fields.begin(), fields.end(), [&](const auto& field) { return field.first == name; })) {
      text.replace(at, kDashes.size(), kField);
    }
  }
  return text;
}

Plan resolve_without_flags(const TrainConfig& config, const Hardware& hardware, const std::optional<Identity>& identity,
                           LaunchFacts facts) {
  try {
    return resolve(config, hardware, identity, std::move(facts));
  } catch (const ConfigError& error) {
    std::vector<Problem> problems = error.problems();
    for (Problem& problem : problems) {
      problem = {with_field_names(problem.what), with_field_names(problem.hint)};
    }
    throw ConfigError(std::move(problems));
  }
}

/// The store of several ranks ends with the Session of rank 0. Another rank that is earlier with its next Session would
/// join the store of the last one.
World connect_once(const Plan& plan, const Identity& identity) {
  static std::atomic<bool> has_connected{false};
  if (identity.world_size > 1 && !identity.agent_store && has_connected) {
    throw ConfigError(
        fmt::format("Session::connect was called twice in this process, which is one of {} ranks", identity.world_size),
        "keep one Session for the whole program, and train as often as you like with its plan and world");
  }
  World world = World::connect(plan, identity);
  has_connected = true;
  return world;
}

/// As at the start of run(): all ranks build the same module.
Session begin_session(Plan plan, World world) {
  at::manual_seed(plan.config.seed);
  plan = with_run_directory(std::move(plan), world);
  if (world.is_main()) {
    for (const std::string& warning : plan.warnings) {
      log_warning(with_field_names(warning));
    }
  }
  return Session(std::move(plan), std::move(world));
}

}  // namespace

Session::Session(Plan plan_, World world_, TrainControl control_)
    : plan(std::move(plan_)),
      world(std::move(world_)),
      control(std::move(control_)),
      console_(world.is_main() ? terminal_console(/*interactive=*/false, /*width=*/0) : silent_console()) {}

void Session::print(std::string_view text) {
  for (const auto& line : split(text, '\n')) {
    console_->line(line);
  }
}

Session Session::single(const TrainConfig& config) {
  TrainConfig one = config;
  one.nprocs = 1;
  const Variables environment = read_environment();
  Plan plan = resolve_without_flags(one, probe_hardware(environment), std::nullopt,
                                    {.launch_name = launch_name(environment, std::nullopt)});
  Identity alone;
  World world = World::connect(plan, alone);
  return begin_session(std::move(plan), std::move(world));
}

Session Session::connect(const TrainConfig& config) {
  const Variables environment = read_environment();
  auto identity = detect_identity(environment);
  if (!identity) {
    return single(config);
  }
  identity->starts_ranks = false;  // only the program that owns this process may start ranks
  Plan plan = resolve_without_flags(config, probe_hardware(environment), identity,
                                    {.launch_name = launch_name(environment, identity)});
  plan.facts.launch_name =
      identify_launch(std::move(plan.facts.launch_name), *identity, to_milliseconds(plan.config.dist.init_timeout_s));
  World world = connect_once(plan, *identity);
  return begin_session(std::move(plan), std::move(world));
}

}  // namespace lockstep
