#include "config/idle_settings.h"

#include <cstddef>
#include <string_view>

#include <fmt/format.h>

#include <lockstep/config/config_io.h>

#include "config/without_files.h"

namespace lockstep {
namespace {

struct Feature {
  std::string_view settings;  // a section with its dot, or one setting
  std::string_view needs;
  bool (*is_on)(const TrainConfig& config);
  std::string_view hint;
  std::string_view except{};  // a setting of the section that needs nothing
};

constexpr Feature kFeatures[] = {
    {"checkpoint.", "checkpoint.enabled", [](const TrainConfig& c) { return c.checkpoint.enabled; },
     "leave it out, or save with --checkpoint.enabled true", "checkpoint.allow_partial"},
    {"optim.lr_batch_size", "optim.lr_scaling",
     [](const TrainConfig& c) {
       return c.optim.lr_scaling != LrScaling::none || c.optim.loss_scaling != LrScaling::none;
     },
     "say what it scales, for example --optim.lr_scaling sqrt"},
    {"early_stop.", "early_stop.metric", [](const TrainConfig& c) { return !c.early_stop.metric.empty(); },
     "name the metric, for example --early_stop.metric val_loss"},
    {"plateau.", "plateau.metric", [](const TrainConfig& c) { return !c.plateau.metric.empty(); },
     "name the metric, for example --plateau.metric val_loss"},
    {"checkpoint.mode", "checkpoint.monitor", [](const TrainConfig& c) { return !c.checkpoint.monitor.empty(); },
     "name the metric, for example --checkpoint.monitor val_loss"},
    {"checkpoint.keep_best", "checkpoint.monitor", [](const TrainConfig& c) { return !c.checkpoint.monitor.empty(); },
     "name the metric, for example --checkpoint.monitor val_loss"},
    {"spike.", "spike.z_score", [](const TrainConfig& c) { return c.spike.z_score > 0; },
     "set how many standard deviations are a spike, for example --spike.z_score 6"},
    {"spike.lr_factor", "spike.policy", [](const TrainConfig& c) { return c.spike.policy == SpikePolicy::lower_lr; },
     "use --spike.policy lower_lr, or leave it out"},
};

bool belongs(std::string_view name, const Feature& feature) {
  return name != feature.needs && name != feature.except &&
         (feature.settings.ends_with('.') ? name.starts_with(feature.settings) : name == feature.settings);
}

bool is_output(std::string_view name) {
  return name.starts_with("report.") || name.starts_with("validate.") || name.starts_with("checkpoint.");
}

}  // namespace

std::vector<IdleSetting> find_idle_settings(const TrainConfig& of_program, const TrainConfig& config) {
  const auto before = config_values(of_program);
  const auto now = config_values(config);
  const auto measured = config_values(with_barebones(config));
  std::vector<IdleSetting> idle;
  for (std::size_t i = 0; i < now.size(); ++i) {
    const std::string& name = now[i].first;
    if (now[i] == before[i]) {
      continue;
    }
    if (is_output(name) && now[i] != measured[i]) {
      idle.push_back({.name = name,
                      .cause = "barebones",
                      .reason = "with barebones",
                      .hint = "remove one of them; such a run neither reports, validates nor saves"});
      continue;  // one reason is enough
    }
    for (const Feature& feature : kFeatures) {
      if (belongs(name, feature) && !feature.is_on(config)) {
        idle.push_back({.name = name,
                        .cause = std::string(feature.needs),
                        .reason = fmt::format("without {}", feature.needs),
                        .hint = std::string(feature.hint)});
        break;
      }
    }
  }
  return idle;
}

}  // namespace lockstep
