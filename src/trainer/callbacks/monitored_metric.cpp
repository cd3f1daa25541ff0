#include "trainer/callbacks/monitored_metric.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "trainer/output/run_metrics.h"
#include "trainer/validate.h"

namespace lockstep {

namespace {

constexpr std::string_view kOf = "of ";

// The steps with such values are skipped, or left out by a rollback.
bool goes_on_without(double value, const TrainConfig& config) {
  const NonFinitePolicy policy = config.optim.non_finite;
  return !std::isfinite(value) && (policy == NonFinitePolicy::skip || policy == NonFinitePolicy::rollback);
}

}  // namespace

bool is_early_report(const StageContext& context) {
  const std::int64_t window = context.plan.config.report.every_steps;
  return context.stage == Stage::report && (window == 0 || context.state.step % window != 0);
}

std::string key_of_metric(const std::string& metric, MonitorMode mode) {
  return fmt::format("{}{} ({})", kOf, metric, mode == MonitorMode::min ? "min" : "max");
}

bool is_of_metric(const NamedTensors& state, const std::string& metric, MonitorMode mode) {
  const std::string mine = key_of_metric(metric, mode);
  return std::ranges::none_of(state,
                              [&](const auto& entry) { return entry.first.starts_with(kOf) && entry.first != mine; });
}

std::optional<double> find_metric(const StageContext& context, const std::string& metric, const char* callback,
                                  bool& is_known) {
  if (is_early_report(context)) {
    return std::nullopt;
  }
  const auto found = std::ranges::find(*context.metrics, metric, &Metrics::value_type::first);
  if (found != context.metrics->end()) {
    is_known = true;
    return goes_on_without(found->second, context.plan.config) ? std::nullopt : std::optional(found->second);
  }
  const Stage expected = metric.starts_with(kValidationPrefix) ? Stage::validation_end
                         : context.plan.config.report.epoch_means && metric.starts_with(kEpochPrefix)
                             ? Stage::epoch_report
                             : Stage::report;
  if (is_known || context.stage != expected) {
    return std::nullopt;
  }
  std::vector<std::string> names;
  std::ranges::transform(*context.metrics, std::back_inserter(names), &Metrics::value_type::first);
  throw ConfigError(fmt::format("{}: found no metric {}", callback, metric),
                    fmt::format("use one of {}", join(names, ", ")));
}

double worst_value(MonitorMode mode) noexcept {
  return mode == MonitorMode::min ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
}

}  // namespace lockstep
