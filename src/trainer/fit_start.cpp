#include "trainer/fit_start.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/module_state.h>

#include "base/text.h"
#include "tensor/dtype_names.h"
#include "trainer/output/metric_names.h"
#include "world/world_access.h"

namespace lockstep {

std::unique_ptr<Strategy> strategy_of(const TrainerParts& trainer) {
  if (!trainer.strategy) {
    return make_strategy(trainer.plan, trainer.world);
  }
  std::unique_ptr<Strategy> strategy = trainer.strategy(trainer.plan, trainer.world);
  if (strategy == nullptr) {
    throw ConfigError("the function given to Trainer::use_strategy returned no strategy",
                      "return make_strategy(plan, world), or a class of your own");
  }
  return strategy;
}

void check_monitored_data(const TrainConfig& config, bool validates) {
  std::vector<Problem> problems;
  const auto expect_data = [&](std::string_view setting, const std::string& metric) {
    if (metric.starts_with(kValidationPrefix) && !validates) {
      problems.push_back({fmt::format("--{} {}: found no validation data", setting, metric),
                          "give fit() a validation source, or name a metric of the training, such as loss"});
    }
  };
  expect_data("checkpoint.monitor", config.checkpoint.monitor);
  expect_data("plateau.metric", config.plateau.metric);
  expect_data("early_stop.metric", config.early_stop.metric);
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
}

// Checked at the start: an error at the first save would lose the training until then.
void check_dtypes(const torch::nn::Module& module) {
  for (const auto& [name, tensor] : module_tensors(module)) {
    if (!dtype_name(tensor.scalar_type())) {
      throw CheckpointError(
          fmt::format("{} has dtype {}, which checkpoints cannot hold", name, c10::toString(tensor.scalar_type())),
          "use another dtype (of the complex ones complex64), or --checkpoint.enabled false");
    }
  }
}

// Frozen parts often stay in evaluation mode on purpose, but a whole module seldom does.
void tell_evaluation_mode(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& part : module.named_modules({}, /*include_self=*/false)) {
    if (!part.value()->is_training()) {
      names.push_back(part.key());
    }
  }
  if (!module.is_training()) {
    log_warning(
        "the task's module is in evaluation mode and is trained in it: dropout does nothing, batch norm keeps "
        "its statistics; call train() before fit() if that is not meant");
  } else if (!names.empty()) {
    log_info(fmt::format("{} stay{} in evaluation mode", join(names, ", "), names.size() == 1 ? "s" : ""));
  }
}

void tell_start(const Plan& plan, World& world, RunFiles& files) {
  std::vector<std::string> hosts;
  std::vector<std::string> devices;
  for (const RankPlace& place : WorldAccess::places(world)) {
    hosts.push_back(place.host);
    devices.push_back(place.device);
  }
  files.event("start", {{"world_size", std::int64_t{world.size()}},
                        {"launch", plan.launch},
                        {"hosts", join(hosts, ", ")},
                        {"devices", join(devices, ", ")}});
}

double batch_factor(LrScaling scaling, std::int64_t global_batch, std::int64_t reference) {
  if (scaling == LrScaling::none) {
    return 1;
  }
  const double ratio = static_cast<double>(global_batch) / static_cast<double>(reference);
  return scaling == LrScaling::linear ? ratio : std::sqrt(ratio);
}

}  // namespace lockstep
