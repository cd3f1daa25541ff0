#include "cli/launch/plan_command.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/config/config_io.h>
#include <lockstep/environment/hardware.h>
#include <lockstep/plan/plan.h>

#include "base/json.h"
#include "cli/commands.h"
#include "environment/job_end.h"
#include "plan/rank_shares.h"

namespace lockstep {
namespace {

constexpr int kMostNodes = 65536;

constexpr FlagRow kFlags[] = {
    {"nodes", "N", "plan for so many nodes like this one; 0: for the launch of this process (default: 0)"},
    {"json", "", "print one JSON object, which docs/launching.md describes"},
};

Json to_json(const LocalDevice& device) {
  return {{"name", to_string(device.id)},
          {"model", device.name},
          {"uuid", device.uuid},
          {"memory_bytes", device.memory_bytes}};
}

Json to_json(const Plan& plan, const std::optional<Identity>& identity) {
  const BatchPlan& batch = plan.loader.batch;
  Json json = {{"format", 1},
               {"launch", plan.launch},
               {"host", plan.host},
               {"nodes", plan.nodes},
               {"world_size", plan.world_size},
               {"batch",
                {{"global_batch_size", batch.global_batch_size},
                 {"batch_size", batch.batch_size},
                 {"accumulation", batch.accumulation}}},
               {"threads_per_rank", plan.threads_per_rank},
               {"ranks", Json::array()},
               {"config", Json::object()},
               {"warnings", plan.warnings},
               {"notes", plan.notes}};
  if (starts_ranks(identity)) {
    for (const RankShare& share : rank_shares(plan)) {
      json["ranks"].push_back({{"rank", share.rank},
                               {"node", share.node},
                               {"local_rank", share.local_rank},
                               {"device", to_json(share.device)},
                               {"samples_per_step", share.samples}});
    }
  }
  for (const auto& [name, value] : config_values(plan.config)) {
    json["config"][name] = value;
  }
  return json;
}

}  // namespace

Identity one_process_per_node(int nodes, std::string launcher) {
  return {.world_size = nodes, .nodes = nodes, .starts_ranks = true, .launcher = std::move(launcher)};
}

namespace {

int print_plan(const CommandLine& line, const Variables& variables) {
  const Invocation& invocation = line.settings;
  if (invocation.print_config) {
    if (line.has("json")) {
      throw ConfigError("plan: --json prints the plan, --print-config the settings", "remove one of the two flags");
    }
    fmt::print("{}", print_config_text(invocation));
    return 0;
  }
  const int nodes = line.number("nodes", 0, kMostNodes, 0);
  auto identity = detect_identity(variables);
  if (nodes == 1) {
    identity.reset();
  } else if (nodes > 1) {
    identity = one_process_per_node(nodes, "any launcher");
    identity->variables = {"--nodes"};
  }
  const Hardware hardware =
      invocation.hardware_file.empty() ? probe_hardware(variables) : read_hardware(invocation.hardware_file);
  const Plan plan = resolve(invocation.config, hardware, identity, {.job_end = job_end(variables)});
  fmt::print("{}", line.has("json") ? dump_json_pretty(to_json(plan, identity)) + "\n" : dry_run_text(plan, identity));
  return 0;
}

}  // namespace

const Command kPlanCommand{.name = "plan",
                           .summary = "print the plan of a run and start nothing",
                           .description =
                               "Prints what a program with these settings would do on this machine, or on "
                               "another one (--hardware): launch, devices, batch, and a row per rank.",
                           .exit_codes = "0, 2 usage or no plan is possible",
                           .flags = kFlags,
                           .form = WordForm::settings,
                           .run = print_plan};

}  // namespace lockstep
