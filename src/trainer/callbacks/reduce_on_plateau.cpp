#include <algorithm>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/parallel/strategy.h>
#include <lockstep/trainer/callbacks.h>
#include <lockstep/world/world.h>

#include "base/text.h"
#include "trainer/callbacks/monitored_metric.h"

namespace lockstep {

ReduceOnPlateau::ReduceOnPlateau(PlateauOptions options)
    : options_(std::move(options)), best_(worst_value(options_.mode)) {
  std::vector<Problem> problems;
  const auto expect = [&](bool good, std::string_view option, auto value, std::string_view range) {
    if (!good) {
      problems.push_back({fmt::format("ReduceOnPlateau: {} is {}, expected {}", option, value, range), {}});
    }
  };
  expect(!options_.metric.empty(), "metric", "empty", "the name of a metric");
  expect(options_.factor > 0 && options_.factor < 1, "factor", options_.factor, "a number between 0 and 1");
  expect(options_.patience >= 0, "patience", options_.patience, "0 or more");
  expect(options_.threshold >= 0, "threshold", options_.threshold, "0 or more");
  expect(options_.cooldown >= 0, "cooldown", options_.cooldown, "0 or more");
  expect(options_.min_lr >= 0, "min_lr", options_.min_lr, "0 or more");
  expect(options_.eps >= 0, "eps", options_.eps, "0 or more");
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
}

// As torch.optim.lr_scheduler.ReduceLROnPlateau counts: the cooldown ends before the patience is compared.
void ReduceOnPlateau::on(const StageContext& context) {
  const auto value = find_metric(context, options_.metric, "ReduceOnPlateau", is_known_);
  if (!value) {
    return;
  }
  if (is_better(*value)) {
    best_ = *value;
    bad_ = 0;
  } else {
    ++bad_;
  }
  if (cooldown_ > 0) {
    --cooldown_;
    bad_ = 0;
  }
  if (bad_ > options_.patience) {
    reduce(context);
    cooldown_ = options_.cooldown;
    bad_ = 0;
  }
}

bool ReduceOnPlateau::is_better(double value) const {
  const double sign = options_.mode == MonitorMode::min ? -1 : 1;
  const double bound =
      options_.threshold_is_relative ? best_ * (1 + sign * options_.threshold) : best_ + sign * options_.threshold;
  return sign < 0 ? value < bound : value > bound;
}

void ReduceOnPlateau::reduce(const StageContext& context) const {
  for (std::size_t i = 0; i < context.strategy.optimizer_count(); ++i) {
    for (auto& group : context.strategy.optimizer(i).torch_optimizer().param_groups()) {
      const double lr = group.options().get_lr();
      const double reduced = std::max(lr * options_.factor, options_.min_lr);
      if (lr - reduced > options_.eps) {
        group.options().set_lr(reduced);
      }
    }
  }
  if (context.world.is_main()) {
    log_info(fmt::format("{} did not improve on {:.5g} in {}: the learning rate is {:.3g} now", options_.metric, best_,
                         counted(bad_, "measurement"), context.strategy.optimizer().lr()));
  }
}

NamedTensors ReduceOnPlateau::save() const {
  if (!is_known_) {
    return {};
  }
  return {{"best", at::scalar_tensor(best_, at::kDouble)},
          {"bad", at::scalar_tensor(bad_, at::kLong)},
          {"cooldown", at::scalar_tensor(cooldown_, at::kLong)},
          {key_of_metric(options_.metric, options_.mode), at::scalar_tensor(1, at::kLong)}};
}

void ReduceOnPlateau::load(const NamedTensors& state) {
  best_ = worst_value(options_.mode);
  bad_ = cooldown_ = 0;
  is_known_ = !state.empty() && is_of_metric(state, options_.metric, options_.mode);
  if (!is_known_) {
    return;
  }
  for (const auto& [name, value] : state) {
    if (name == "best") {
      best_ = value.item<double>();
    } else if (name == "bad") {
      bad_ = value.item<std::int64_t>();
    } else if (name == "cooldown") {
      cooldown_ = value.item<std::int64_t>();
    }
  }
}

}  // namespace lockstep
