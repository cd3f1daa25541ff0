#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <lockstep/base/log.h>
#include <lockstep/parallel/strategy.h>
#include <lockstep/trainer/callbacks.h>

#include "base/option_check.h"
#include "base/text.h"
#include "trainer/callbacks/monitored_metric.h"

namespace lockstep {

// What a public header declares at namespace level leaves the library, so it declares a member.
struct ReduceOnPlateau::Metric : MonitoredMetric {
  using MonitoredMetric::MonitoredMetric;
};

ReduceOnPlateau::ReduceOnPlateau(ReduceOnPlateauOptions options)
    : options_(std::move(options)),
      metric_(std::make_unique<Metric>("ReduceOnPlateau", options_.metric, options_.mode)) {
  OptionCheck("ReduceOnPlateau")
      .expect("metric", "empty", !options_.metric.empty(), "the name of a metric")
      .expect("factor", options_.factor, options_.factor > 0 && options_.factor < 1, "a number between 0 and 1")
      .expect("patience", options_.patience, options_.patience >= 0, "0 or more")
      .expect("threshold", options_.threshold, options_.threshold >= 0, "0 or more")
      .expect("cooldown", options_.cooldown, options_.cooldown >= 0, "0 or more")
      .expect("min_lr", options_.min_lr, options_.min_lr >= 0, "0 or more")
      .expect("eps", options_.eps, options_.eps >= 0, "0 or more")
      .throw_problems();
}

ReduceOnPlateau::~ReduceOnPlateau() = default;

// The cooldown ends before the patience is compared, as in torch.optim.lr_scheduler.ReduceLROnPlateau.
void ReduceOnPlateau::on(const StageContext& context) {
  if (context.stage == Stage::fit_end) {
    metric_->warn_if_unknown(context);
    return;
  }
  if (context.stage == Stage::fit_start) {
    if (context.state.step == 0) {
      metric_->forget();  // another training of this process
      load({});
    }
    return;
  }
  const auto value = metric_->find(context);
  if (!value) {
    return;
  }
  metric_->add(*value, bound());
  if (cooldown_ > 0) {
    --cooldown_;
    metric_->forget_bad();
  }
  if (metric_->bad() > options_.patience) {
    reduce(context);
    cooldown_ = options_.cooldown;
    metric_->forget_bad();
  }
}

// A better value is an improvement.
double ReduceOnPlateau::bound() const {
  const double change = metric_->sign() * options_.threshold;
  return options_.threshold_is_relative ? metric_->best() * (1 + change) : metric_->best() + change;
}

void ReduceOnPlateau::reduce(const StageContext& context) const {
  std::optional<double> changed;  // the first rate that is not at its least yet
  for (std::size_t i = 0; i < context.strategy->optimizer_count(); ++i) {
    context.strategy->optimizer(i).change_lr([&](double lr) {
      const double reduced = std::max(lr * options_.factor, options_.min_lr);
      if (!(lr - reduced > options_.eps)) {
        return lr;
      }
      changed = changed.value_or(reduced);
      return reduced;
    });
  }
  if (changed) {
    log_info(fmt::format("{} did not improve on {:.5g} in {}: the learning rate is {:.3g} now", options_.metric,
                         metric_->best(), counted(metric_->bad(), "measurement"), *changed));
  }
}

NamedTensors ReduceOnPlateau::save() const {
  NamedTensors state = metric_->save();
  if (!state.empty()) {
    state.emplace_back("cooldown", at::scalar_tensor(cooldown_, at::kLong));
  }
  return state;
}

void ReduceOnPlateau::load(const NamedTensors& state) {
  metric_->load(state);
  cooldown_ = 0;
  for (const auto& [name, value] : state) {
    if (metric_->is_known() && name == "cooldown") {
      cooldown_ = value.item<std::int64_t>();
    }
  }
}

}  // namespace lockstep
