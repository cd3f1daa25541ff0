#include "trainer/output/run_metrics.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "tensor/find_tensor.h"
#include "tensor/prefixed.h"
#include "trainer/output/metric_names.h"

namespace lockstep {
namespace {

// Prefixes of the names in a checkpoint. The sums of the window have none.
constexpr std::string_view kMetric = "metric.";                // states of Task::metrics
constexpr std::string_view kWindowMetric = "window_metric.";   // the earlier ones of the window
constexpr std::string_view kEpochMetric = "epoch_metric.";     // the earlier ones of the epoch
constexpr std::string_view kEpoch = "epoch.";                  // sums of the epoch
constexpr std::string_view kLogged = "logged.";                // in earlier steps of the window
constexpr std::string_view kLoggedInStep = "logged_in_step.";  // in the step of the checkpoint
constexpr std::string_view kLeftOut = "left_out";              // only if steps of the window are left out
constexpr std::string_view kEpochLeftOut = "epoch_left_out";   // only if steps of the epoch are left out

NamedTensors to_tensors(const Metrics& metrics) {
  NamedTensors tensors;
  for (const auto& [name, value] : metrics) {
    tensors.emplace_back(name, at::scalar_tensor(value, at::kDouble));
  }
  return tensors;
}

Metrics to_metrics(const NamedTensors& tensors) {
  Metrics metrics;
  for (const auto& [name, value] : tensors) {
    metrics.emplace_back(name, value.item<double>());
  }
  return metrics;
}

}  // namespace

void RunMetrics::begin(std::vector<metrics::NamedMetric> of_task) {
  metrics_ = {std::move(of_task), world_};
  metrics_.reset();
  metrics_.check_sizes();  // not in the first report, which may be that of a validation after hours
}

Metrics RunMetrics::values() {
  had_left_out_ = window_left_out_;
  Metrics values = window_.means(world_);
  append_with_prefix(values, "", metrics_.values(world_, in_window_));
  return values;
}

Metrics RunMetrics::end_window() {
  had_left_out_ = std::exchange(window_left_out_, false);
  Metrics values = window_.take(world_);
  append_with_prefix(values, "", metrics_.values(world_, in_window_));
  if (of_epochs_) {
    in_epoch_ = metrics_.take(in_epoch_);
  } else {
    metrics_.reset();
  }
  in_window_.clear();
  return values;
}

Metrics RunMetrics::end_epoch() {
  had_left_out_ = std::exchange(epoch_left_out_, false);
  Metrics values;
  append_with_prefix(values, kEpochPrefix, epoch_.take(world_));
  append_with_prefix(values, kEpochPrefix, metrics_.values(world_, in_epoch_));
  in_window_ = metrics_.take(in_window_);
  in_epoch_.clear();
  epoch_has_steps_ = false;
  return values;
}

void RunMetrics::forget_step() {
  epoch_has_steps_ = true;
  for (const auto& [name, value] : logged_) {
    set_metric(logged_before_, name, value);
  }
  logged_.clear();
  older_.clear();
}

void RunMetrics::append_logged(Metrics& metrics, bool ends_window) {
  for (const auto& [name, value] : logged_before_) {
    if (find_metric(logged_, name) == nullptr) {
      metrics.emplace_back(name, value);
      older_.insert(name);
    }
  }
  metrics.insert(metrics.end(), logged_.begin(), logged_.end());
  if (ends_window) {
    logged_before_.clear();
    logged_.clear();
  }
}

NamedTensors RunMetrics::save() {
  NamedTensors saved = window_.save(world_);
  append_with_prefix(saved, kMetric, metrics_.save(world_));
  append_with_prefix(saved, kWindowMetric, metrics_.save(world_, in_window_));
  if (of_epochs_) {
    append_with_prefix(saved, kEpochMetric, metrics_.save(world_, in_epoch_));
    append_with_prefix(saved, kEpoch, epoch_.save(world_));
  }
  append_with_prefix(saved, kLogged, to_tensors(logged_before_));
  append_with_prefix(saved, kLoggedInStep, to_tensors(logged_));
  if (window_left_out_) {
    saved.emplace_back(kLeftOut, at::ones({1}));
  }
  if (of_epochs_ && epoch_left_out_) {
    saved.emplace_back(kEpochLeftOut, at::ones({1}));
  }
  return saved;
}

void RunMetrics::load(const NamedTensors& saved) {
  window_.load(saved, world_);
  in_window_.clear();
  if (const NamedTensors in_window = under_prefix(saved, kWindowMetric); !in_window.empty()) {
    metrics_.load(in_window, world_);  // also if the means of epochs are off now, as they end windows too
    in_window_ = metrics_.take({});
  }
  if (of_epochs_) {
    metrics_.load(under_prefix(saved, kEpochMetric), world_);
    in_epoch_ = metrics_.take({});
    epoch_.load(under_prefix(saved, kEpoch), world_);
  }
  metrics_.load(under_prefix(saved, kMetric), world_);
  logged_before_ = to_metrics(under_prefix(saved, kLogged));
  logged_ = to_metrics(under_prefix(saved, kLoggedInStep));
  window_left_out_ = find_tensor(saved, kLeftOut) != nullptr;
  epoch_left_out_ = find_tensor(saved, kEpochLeftOut) != nullptr;
}

bool RunMetrics::has_epoch(const NamedTensors& saved) {
  return std::ranges::any_of(saved, [](const auto& tensor) { return tensor.first.starts_with(kEpoch); });
}

}  // namespace lockstep
