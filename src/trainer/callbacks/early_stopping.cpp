#include <cmath>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/trainer/callbacks.h>

#include "base/text.h"
#include "trainer/callbacks/monitored_metric.h"

namespace lockstep {

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)), best_(worst_value(options_.mode)) {
  std::vector<Problem> problems;
  if (options_.metric.empty()) {
    problems.push_back({"EarlyStopping: metric is empty, expected the name of a metric", {}});
  }
  if (options_.patience < 1) {
    problems.push_back({fmt::format("EarlyStopping: patience is {}, expected 1 or more", options_.patience), {}});
  }
  if (!(options_.min_delta >= 0)) {
    problems.push_back({fmt::format("EarlyStopping: min_delta is {}, expected 0 or more", options_.min_delta), {}});
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
}

void EarlyStopping::on(const StageContext& context) {
  if (context.stage != Stage::fit_start) {
    if (!reason_.empty()) {
      return;  // a run that must first reach its minimum
    }
    const auto value = find_metric(context, options_.metric, "EarlyStopping", is_known_);
    if (!value) {
      return;
    }
    last_ = *value;
    if (is_better(last_, best_, options_.min_delta)) {
      best_ = last_;
      bad_ = 0;
    } else {
      ++bad_;
    }
  }
  reason_ = is_known_ ? find_reason() : std::string();  // at the start: that of a resumed run
  if (!reason_.empty()) {
    context.control.request_stop(reason_);
  }
}

std::string EarlyStopping::find_reason() const {
  if (options_.check_finite && !std::isfinite(last_)) {
    return fmt::format("{} is {}", options_.metric, last_);
  }
  if (const auto& good = options_.stopping_threshold; good && is_better(last_, *good, 0)) {
    return fmt::format("{} {:.5g} is better than {:.5g}", options_.metric, last_, *good);
  }
  if (const auto& bad = options_.divergence_threshold; bad && is_better(*bad, last_, 0)) {
    return fmt::format("{} {:.5g} is worse than {:.5g}", options_.metric, last_, *bad);
  }
  if (bad_ >= options_.patience) {
    return fmt::format("{} did not improve on {:.5g} in {}", options_.metric, best_, counted(bad_, "measurement"));
  }
  return {};
}

bool EarlyStopping::is_better(double value, double than, double delta) const {
  return options_.mode == MonitorMode::min ? value < than - delta : value > than + delta;
}

NamedTensors EarlyStopping::save() const {
  if (!is_known_) {
    return {};
  }
  return {{"best", at::scalar_tensor(best_, at::kDouble)},
          {"last", at::scalar_tensor(last_, at::kDouble)},
          {"bad", at::scalar_tensor(bad_, at::kLong)},
          {key_of_metric(options_.metric, options_.mode), at::scalar_tensor(1, at::kLong)}};
}

void EarlyStopping::load(const NamedTensors& state) {
  best_ = worst_value(options_.mode);
  bad_ = 0;
  is_known_ = !state.empty() && is_of_metric(state, options_.metric, options_.mode);
  if (!is_known_) {
    return;
  }
  for (const auto& [name, value] : state) {
    if (name == "best") {
      best_ = value.item<double>();
    } else if (name == "last") {
      last_ = value.item<double>();
    } else if (name == "bad") {
      bad_ = value.item<std::int64_t>();
    }
  }
}

}  // namespace lockstep
