// A metric by which a callback decides.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <lockstep/trainer/callback.h>

namespace lockstep {

/// The best value of a metric, and how many measurements since then were no better.
class MonitoredMetric {
 public:
  /// `callback`: its name in messages.
  MonitoredMetric(const char* callback, std::string name, MonitorMode mode);

  /// Throws: ConfigError if the first report or validation that should have the metric lacks it; later ones may.
  /// nullopt: not measured at this stage, or not finite although optim.non_finite lets the run go on without that step.
  std::optional<double> find(const StageContext& context);
  /// At the end of a fit that no stop ended: warns if the metric has never been measured, perhaps because of a typo, or
  /// never as a finite number.
  void warn_if_unknown(const StageContext& context) const;
  /// A value that is better than `bound` becomes the best one; others are counted.
  void add(double value, double bound);
  void forget_bad() noexcept { bad_ = 0; }

  bool is_better(double value, double bound) const noexcept;
  double sign() const noexcept { return mode_ == MonitorMode::min ? -1 : 1; }  ///< a better value is in its direction
  bool is_known() const noexcept { return is_known_; }                         ///< a report or a validation had it
  double best() const noexcept { return best_; }
  std::int64_t bad() const noexcept { return bad_; }  ///< measurements since the best one

  /// Another training begins.
  void forget() noexcept { is_known_ = false; }
  /// {}: no report and no validation had it.
  NamedTensors save() const;
  /// Ignores other tensors. The state of another metric, or of another mode, is of no use: then nothing is known. {}:
  /// the run goes back to a time before the first measurement; later ones may still lack the metric.
  void load(const NamedTensors& state);

 private:
  std::string key() const;

  const char* callback_;
  std::string name_;
  MonitorMode mode_;
  bool is_known_ = false;
  double best_;
  std::int64_t bad_ = 0;
};

}  // namespace lockstep
