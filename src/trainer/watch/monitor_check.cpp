#include "trainer/watch/monitor_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/mapped.h"
#include "base/problems.h"
#include "trainer/output/metric_names.h"

namespace lockstep {
namespace {

/// Settings that name a metric by which something is decided.
struct Monitor {
  std::string_view setting;
  const std::string& metric;
  std::string_view mode_setting;
  MonitorMode mode;
};

std::array<Monitor, 3> monitors_of(const TrainConfig& config) {
  return {{{"checkpoint.monitor", config.checkpoint.monitor, "checkpoint.mode", config.checkpoint.mode},
           {"plateau.metric", config.plateau.metric, "plateau.mode", config.plateau.mode},
           {"early_stop.metric", config.early_stop.metric, "early_stop.mode", config.early_stop.mode}}};
}

bool never_validates(const TrainConfig& config) {
  const ValidateConfig& validate = config.validate;
  const bool by_epochs = validate.every_epochs > 0 &&
                         (config.max_epochs == 0 || validate.every_epochs <= static_cast<double>(config.max_epochs));
  return !by_epochs && validate.every_steps == 0 && validate.every_s == 0 && !validate.at_start;
}

}  // namespace

void check_monitors_without_validation(const TrainConfig& config) {
  std::vector<Problem> problems;
  for (const Monitor& monitor : monitors_of(config)) {
    if (monitor.metric.starts_with(kValidationPrefix)) {
      problems.push_back({fmt::format("--{} {}: found no validation data", monitor.setting, monitor.metric),
                          "give fit() a validation source, or name a metric of the training, such as loss"});
    }
  }
  throw_if_any(std::move(problems));
}

void check_monitors_of_validation(const Metrics& means, const TrainConfig& config) {
  const auto names = mapped(means, [](const auto& mean) { return fmt::format("{}{}", kValidationPrefix, mean.first); });
  std::vector<Problem> problems;
  for (const Monitor& monitor : monitors_of(config)) {
    if (monitor.metric.starts_with(kValidationPrefix) && std::ranges::find(names, monitor.metric) == names.end()) {
      problems.push_back({fmt::format("--{} {}: found no such metric", monitor.setting, monitor.metric),
                          hint_for_metric(monitor.metric, names)});
    }
  }
  throw_if_any(std::move(problems));
}

void warn_about_monitors(const TrainConfig& config) {
  for (const auto& [setting, metric, mode_setting, mode] : monitors_of(config)) {
    if (metric.starts_with(kValidationPrefix) && never_validates(config)) {
      log_warning(fmt::format("--{} {}: no validation will happen; see --validate.every_epochs", setting, metric));
    }
    if (metric.ends_with("loss") && mode == MonitorMode::max) {
      log_warning(
          fmt::format("--{} {} with --{} max: the largest value counts as the best", setting, metric, mode_setting));
    } else if (metric.ends_with("accuracy") && mode == MonitorMode::min) {
      log_warning(
          fmt::format("--{} {} with --{} min: the smallest value counts as the best", setting, metric, mode_setting));
    }
  }
}

bool CheckpointMonitor::is_missing_in(const Metrics& metrics, Stage stage) {
  const std::string& monitor = config_.checkpoint.monitor;
  if (monitor.empty() || stage_of_metric(monitor, config_) != stage) {
    return false;
  }
  if (const double* value = find_metric(metrics, monitor)) {
    is_measured_ = true;
    was_finite_ = was_finite_ || std::isfinite(*value);
  }
  return !is_measured_ && !may_lack_metrics(metrics, config_);
}

ConfigError CheckpointMonitor::not_found_in(const Metrics& metrics) {
  is_told_ = true;
  const std::string& monitor = config_.checkpoint.monitor;
  return ConfigError(fmt::format("--checkpoint.monitor {}: found no such metric", monitor),
                     late_hint_for_metric(monitor, mapped(metrics, &Metrics::value_type::first)));
}

void CheckpointMonitor::warn_at(std::int64_t step) {
  if (!std::exchange(is_told_, true)) {
    log_warning(
        fmt::format("--checkpoint.monitor {}: step {} has no value of it, so its checkpoint is not compared with "
                    "others; save where it is measured, or log it at the end of each epoch",
                    config_.checkpoint.monitor, step));
  }
}

}  // namespace lockstep
