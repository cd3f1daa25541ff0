// What the steps of a run measure: means of losses and metrics since the last report and, with report.epoch_means, of
// the present epoch. Reports and epochs end at different steps, so states of metrics are kept for both.
#pragma once

#include <utility>
#include <vector>

#include <lockstep/tensor/named_tensors.h>
#include <lockstep/trainer/callback.h>
#include <lockstep/world/world.h>

#include "metrics/metric_set.h"
#include "trainer/meter.h"

namespace lockstep {

class RunMetrics {
 public:
  RunMetrics(bool of_epochs, World& world) : of_epochs_(of_epochs), world_(world) {}

  /// Before the first step. `of_task`: Task::metrics.
  void begin(std::vector<metrics::NamedMetric> of_task);

  /// For the losses of each step.
  Meter& of_window() noexcept { return window_; }
  /// The same for the epoch; nullptr: report.epoch_means is off.
  Meter* of_epoch() noexcept { return of_epochs_ ? &epoch_ : nullptr; }
  /// What callbacks logged for the next report.
  Metrics& logged() noexcept { return logged_; }

  /// Collective. The means since the last report. Waits for the device.
  Metrics values();
  /// Collective. The same; the next window begins.
  Metrics end_window();
  /// Collective. The means of the epoch, with their prefix; the next epoch begins. Waits for the device.
  Metrics end_epoch();

  /// Collective. All of it, for a checkpoint.
  NamedTensors save();
  /// Continues with the result of save(), on any number of ranks; ignores other tensors.
  void load(const NamedTensors& saved);
  /// False: report.epoch_means is on, and was off in the run that saved.
  static bool has_epoch(const NamedTensors& saved);

 private:
  const bool of_epochs_;
  World& world_;
  Meter window_{};
  Meter epoch_{};
  metrics::MetricSet metrics_{};
  // States from before `metrics_` was reset the last time: in the present window, and in the present epoch.
  metrics::MetricSet::States in_window_{};
  metrics::MetricSet::States in_epoch_{};
  Metrics logged_{};
};

}  // namespace lockstep
