#include <cmath>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <lockstep/trainer/callbacks.h>

#include "base/option_check.h"
#include "base/text.h"
#include "trainer/callbacks/monitored_metric.h"

namespace lockstep {

// What a public header declares at namespace level leaves the library, so it declares a member.
struct EarlyStopping::Metric : MonitoredMetric {
  using MonitoredMetric::MonitoredMetric;
};

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)), metric_(std::make_unique<Metric>("EarlyStopping", options_.metric, options_.mode)) {
  OptionCheck("EarlyStopping")
      .expect("metric", "empty", !options_.metric.empty(), "the name of a metric")
      .expect("patience", options_.patience, options_.patience >= 1, "1 or more")
      .expect("min_delta", options_.min_delta, options_.min_delta >= 0, "0 or more")
      .throw_problems();
}

EarlyStopping::~EarlyStopping() = default;

void EarlyStopping::on(const StageContext& context) {
  if (context.stage == Stage::fit_end) {
    metric_->warn_if_unknown(context);
    return;
  }
  if (context.stage == Stage::fit_start) {
    if (context.state.step == 0) {
      metric_->forget();  // another training of this process
      load({});
    }
  } else {
    if (!reason_.empty()) {
      return;  // a run that must first reach its minimum
    }
    const auto value = metric_->find(context);
    if (!value) {
      return;
    }
    last_ = value;
    metric_->add(*value, metric_->best() + metric_->sign() * options_.min_delta);
  }
  reason_ = last_ ? find_reason(*last_) : std::string();  // at the start: that of a resumed run
  if (!reason_.empty()) {
    context.control.request_stop(reason_);
  }
}

std::string EarlyStopping::find_reason(double last) const {
  if (options_.check_finite && !std::isfinite(last)) {
    return fmt::format("{} is {}", options_.metric, last);
  }
  if (const auto& good = options_.stopping_threshold; good && metric_->is_better(last, *good)) {
    return fmt::format("{} {:.5g} is better than {:.5g}", options_.metric, last, *good);
  }
  if (const auto& bad = options_.divergence_threshold; bad && metric_->is_better(*bad, last)) {
    return fmt::format("{} {:.5g} is worse than {:.5g}", options_.metric, last, *bad);
  }
  if (metric_->bad() >= options_.patience) {
    return fmt::format("{} did not improve on {:.5g} in {}", options_.metric, metric_->best(),
                       counted(metric_->bad(), "measurement"));
  }
  return {};
}

NamedTensors EarlyStopping::save() const {
  NamedTensors state = metric_->save();
  if (last_) {
    state.emplace_back("last", at::scalar_tensor(*last_, at::kDouble));
  }
  return state;
}

void EarlyStopping::load(const NamedTensors& state) {
  metric_->load(state);
  last_.reset();
  for (const auto& [name, value] : state) {
    if (metric_->is_known() && name == "last") {
      last_ = value.item<double>();
    }
  }
}

}  // namespace lockstep
