#include "cli/launch/plan_command.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/config/config_io.h>
#include <lockstep/environment/hardware.h>
#include <lockstep/plan/plan.h>

#include "base/json.h"
#include "cli/commands.h"
#include "environment/job_end.h"
#include "plan/batch_limit.h"
#include "plan/memory_plan.h"
#include "plan/rank_shares.h"
#include "storage/run_directory.h"

namespace lockstep {
namespace {

constexpr int kMostNodes = 65536;

constexpr FlagRow kFlags[] = {
    {"nodes", "N", "plan for so many nodes like this one; 0: for the launch of this process (default: 0)"},
    {"parameters", "N", "of the model, such as 124M or 7B: also print what they need in the memory of each rank"},
    {"optimizer", "NAME", "of the program, with --parameters, such as lion or sgd+momentum (default: adamw)"},
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

Json to_json(const MemoryPlan& memory, const Plan& plan) {
  const MemoryEstimate& estimate = memory.estimate;
  Json json = {{"parameters", memory.parameters},
               {"optimizer", memory.optimizer.name},
               {"weights_bytes", estimate.weights},
               {"gradients_bytes", estimate.gradients},
               {"optimizer_state_bytes", estimate.optimizer_state},
               {"rollback_bytes", estimate.rollback},
               {"half_precision_bytes", estimate.half_copies},
               {"update_bytes", estimate.update},
               {"fits", !find_lack_of_memory(memory, plan)},
               {"ranks", Json::array()}};
  for (std::size_t i = 0; i < memory.available.size(); ++i) {
    const std::int64_t available = memory.available[i];
    Json rank = {{"local_rank", i}, {"device", to_string(plan.local_devices[i].id)}};
    rank["available_bytes"] = available > 0 ? Json(available) : Json();
    rank["activations_bytes"] = available > 0 ? Json(available - estimate.beside_activations()) : Json();
    json["ranks"].push_back(std::move(rank));
  }
  return json;
}

/// nullopt: it is not asked for.
std::optional<MemoryPlan> memory_of(const CommandLine& line, const Plan& plan, const Hardware& hardware) {
  const GivenFlag* given = line.find("parameters");
  if (given == nullptr) {
    if (line.has("optimizer")) {
      throw ConfigError("plan: --optimizer belongs to --parameters",
                        "add --parameters N: the number of parameters of the model");
    }
    return std::nullopt;
  }
  const auto parameters = parse_parameters(given->text);
  if (!parameters) {
    throw ConfigError(fmt::format("{}: expected a number such as 124M, 7B or 350000", given->label), given->hint());
  }
  return plan_memory(*parameters, optimizer_memory(line.value("optimizer", "adamw")), plan, hardware);
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
  const TrainConfig& config = invocation.config;
  const Plan plan = with_kept_limit(resolve(config, hardware, identity, {.job_end = job_end(variables)}),
                                    kept_batch_limit(real_file_system(), run_directory(config)));
  const std::optional<MemoryPlan> memory = memory_of(line, plan, hardware);
  if (line.has("json")) {
    Json json = to_json(plan, identity);
    if (memory) {
      json["memory"] = to_json(*memory, plan);
    }
    fmt::print("{}\n", dump_json_pretty(json));
  } else {
    fmt::print("{}{}", dry_run_text(plan, identity), memory ? describe(*memory, plan) : "");
  }
  if (const auto lack = memory ? find_lack_of_memory(*memory, plan) : std::nullopt) {
    throw ConfigError({*lack});
  }
  return 0;
}

}  // namespace

const Command kPlanCommand{.name = "plan",
                           .summary = "print the plan of a run and start nothing",
                           .description =
                               "Prints what a program with these settings would do on this machine, or on "
                               "another one (--hardware): launch, devices, batch, and a row per rank. With "
                               "--parameters also whether a model fits into the memory of each rank, and how much is "
                               "left for activations; find_batch_size in the program finds the batch for it.",
                           .exit_codes = "0, 2 usage, no plan is possible, or the model does not fit",
                           .flags = kFlags,
                           .form = WordForm::settings,
                           .run = print_plan};

}  // namespace lockstep
