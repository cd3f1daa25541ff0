// What the steps of a run measure: means of losses and metrics since the last report and, with report.epoch_means, of
// the present epoch. Reports and epochs end at different steps, so states of metrics are kept for both.
#pragma once

#include <set>
#include <string>
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
  /// What callbacks logged in this step, for the next report.
  Metrics& logged() noexcept { return logged_; }
  /// The next step begins: what was logged until now still belongs to the next report.
  void forget_step();
  /// Appends what callbacks logged since the last report. `ends_window`: it is not reported again.
  void append_logged(Metrics& metrics, bool ends_window);
  /// True: the value that a report of this step has is of an earlier one, and of other weights.
  bool is_older(const std::string& name) const { return older_.contains(name); }

  /// A rollback left out steps of the present epoch and, if `in_window`, of the present window. The means have them
  /// nevertheless.
  void note_left_out_steps(bool in_window) noexcept {
    window_left_out_ = window_left_out_ || in_window;
    epoch_left_out_ = epoch_left_out_ || epoch_has_steps_;
  }
  /// The means that were taken last have such steps.
  bool have_left_out_steps() const noexcept { return had_left_out_; }

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
  Metrics logged_before_{};  // in earlier steps of the window
  Metrics logged_{};
  std::set<std::string> older_{};  // names in the report of this step
  bool epoch_has_steps_ = false;   // here, since its last report
  bool window_left_out_ = false;   // the present window has left out steps
  bool epoch_left_out_ = false;    // the present epoch has
  bool had_left_out_ = false;      // the means that were taken last have
};

}  // namespace lockstep
