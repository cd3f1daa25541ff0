// report.epoch_means: what a report at the end of an epoch shows. Windows of reports and epochs end at different steps,
// so states of metrics are kept for both.
#pragma once

#include <string_view>
#include <utility>

#include <lockstep/tensor/named_tensors.h>
#include <lockstep/trainer/callback.h>
#include <lockstep/trainer/step.h>
#include <lockstep/world/world.h>

#include "metrics/metric_set.h"

namespace lockstep {

inline constexpr std::string_view kEpochPrefix = "epoch_";  ///< of the metrics of an epoch

class EpochMeans {
 public:
  explicit EpochMeans(bool is_on) : is_on_(is_on) {}

  bool is_on() const noexcept { return is_on_; }
  /// For the losses and metrics of each step; nullptr: they are not needed.
  Meter* meter() noexcept { return is_on_ ? &meter_ : nullptr; }

  /// Collective. The values of `metrics` since the last end_window().
  Metrics values_of_window(metrics::MetricSet& metrics, World& world) { return metrics.values(world, in_window_); }
  /// The next window begins.
  void end_window(metrics::MetricSet& metrics);
  /// Collective. The means of the epoch, with their prefix; the next epoch begins. Waits for the device.
  Metrics end_epoch(metrics::MetricSet& metrics, World& world);

  /// Collective. Adds the states of `metrics` and the sums of the epoch to those of a checkpoint.
  void save(metrics::MetricSet& metrics, World& world, NamedTensors& report);
  /// False for what save() has added.
  static bool is_sum_of_window(std::string_view name);
  /// Takes what save() has added.
  void load(const NamedTensors& report, metrics::MetricSet& metrics, const World& world);

 private:
  bool is_on_;
  Meter meter_{};
  // States from before `metrics` was reset the last time: in the present window, and in the present epoch.
  metrics::MetricSet::States in_window_{};
  metrics::MetricSet::States in_epoch_{};
};

}  // namespace lockstep
