// Whether there are the metrics by which settings decide: checkpoint.monitor, plateau.metric, early_stop.metric.
#pragma once

#include <cstdint>

#include <lockstep/base/error.h>
#include <lockstep/config/train_config.h>
#include <lockstep/trainer/callback.h>

namespace lockstep {

/// For a fit without validation data. Throws: ConfigError if a setting names a metric of the validation.
void check_monitors_without_validation(const TrainConfig& config);

/// `means`: all metrics of a validation. Throws: ConfigError if a setting names another one.
void check_monitors_of_validation(const Metrics& means, const TrainConfig& config);

/// Warns about what is allowed, and seldom meant.
void warn_about_monitors(const TrainConfig& config);

/// The metric of checkpoint.monitor during a fit. A report may lack a metric that an earlier one had, so it is enough
/// that it was measured once.
class CheckpointMonitor {
 public:
  explicit CheckpointMonitor(const TrainConfig& config) : config_(config) {}

  /// A checkpoint of the run has it.
  void note_measured() noexcept { is_measured_ = was_finite_ = true; }
  bool is_measured() const noexcept { return is_measured_; }
  bool was_finite() const noexcept { return was_finite_; }  ///< once
  /// Looks at the metrics of a stage. True if it was never measured, and they should have it.
  bool is_missing_in(const Metrics& metrics, Stage stage);
  /// For a metric that is_missing_in(). No other message about it follows.
  ConfigError not_found_in(const Metrics& metrics);
  /// The first call warns that this step has no value of it.
  void warn_at(std::int64_t step);

 private:
  const TrainConfig& config_;
  bool is_measured_ = false;
  bool was_finite_ = false;
  bool is_told_ = false;  // that it is missing
};

}  // namespace lockstep
