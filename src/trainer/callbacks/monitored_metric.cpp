#include "trainer/callbacks/monitored_metric.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <lockstep/base/log.h>
#include <lockstep/world/world.h>

#include "trainer/output/metric_names.h"

namespace lockstep {

namespace {

constexpr std::string_view kOf = "of ";  // in a checkpoint, before the name of the metric

double worst_value(MonitorMode mode) noexcept {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return mode == MonitorMode::min ? kInfinity : -kInfinity;
}

// The steps with such values are skipped, or left out by a rollback.
bool goes_on_without(double value, const TrainConfig& config) {
  const NonFinitePolicy policy = config.optim.non_finite;
  return !std::isfinite(value) && (policy == NonFinitePolicy::skip || policy == NonFinitePolicy::rollback);
}

}  // namespace

MonitoredMetric::MonitoredMetric(const char* callback, std::string name, MonitorMode mode)
    : callback_(callback), name_(std::move(name)), mode_(mode), best_(worst_value(mode)) {}

std::optional<double> MonitoredMetric::find(const StageContext& context) {
  // A validation outside fit() decides nothing.
  const TrainConfig& config = context.plan.config;
  // The times of such reports differ between runs.
  const bool is_by_time = context.stage == Stage::report && config.report.every_steps == 0;
  if (context.strategy == nullptr || context.is_left_out || is_by_time || !context.ends_window) {
    return std::nullopt;
  }
  if (const double* value = find_metric(*context.metrics, name_)) {
    is_known_ = true;
    return goes_on_without(*value, config) ? std::nullopt : std::optional(*value);
  }
  if (is_known_ || context.stage != stage_of_metric(name_, config) || may_lack_metrics(*context.metrics, config)) {
    return std::nullopt;
  }
  throw metric_not_found(callback_, name_, *context.metrics);
}

void MonitoredMetric::warn_if_unknown(const StageContext& context) const {
  const bool was_stopped = context.control.agreed() != StopKind::none;
  const bool has_value = is_known_ && best_ != worst_value(mode_);
  if (!has_value && !was_stopped && !context.plan.config.barebones && context.world.is_main()) {
    log_warning(never_measured(callback_, name_, is_known_));
  }
}

void MonitoredMetric::add(double value, double bound) {
  if (is_better(value, bound)) {
    best_ = value;
    bad_ = 0;
  } else {
    ++bad_;
  }
}

bool MonitoredMetric::is_better(double value, double bound) const noexcept {
  return mode_ == MonitorMode::min ? value < bound : value > bound;
}

std::string MonitoredMetric::key() const {
  return fmt::format("{}{} ({})", kOf, name_, mode_ == MonitorMode::min ? "min" : "max");
}

NamedTensors MonitoredMetric::save() const {
  if (!is_known_) {
    return {};
  }
  return {{"best", at::scalar_tensor(best_, at::kDouble)},
          {"bad", at::scalar_tensor(bad_, at::kLong)},
          {key(), at::scalar_tensor(1, at::kLong)}};
}

void MonitoredMetric::load(const NamedTensors& state) {
  const auto is_of_another = [mine = key()](const auto& entry) {
    return entry.first.starts_with(kOf) && entry.first != mine;
  };
  is_known_ = state.empty() ? is_known_ : std::ranges::none_of(state, is_of_another);
  best_ = worst_value(mode_);
  bad_ = 0;
  for (const auto& [name, value] : state) {
    if (is_known_ && name == "best") {
      best_ = value.item<double>();
    } else if (is_known_ && name == "bad") {
      bad_ = value.item<std::int64_t>();
    }
  }
}

}  // namespace lockstep
