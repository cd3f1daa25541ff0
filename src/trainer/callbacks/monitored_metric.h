// A metric by which a callback decides.
#pragma once

#include <optional>
#include <string>

#include <lockstep/trainer/callback.h>

namespace lockstep {

/// A report before the end of its window: at the end of a run, or on request. A run that continues reports the window
/// again, so no state may depend on it.
bool is_early_report(const StageContext& context);

/// Throws: ConfigError naming `callback` if the first report or validation that should have the metric lacks it; later
/// ones may. nullopt: not measured at this stage, or not finite although optim.non_finite lets the run go on without
/// that step. `is_known`: it was measured before; is set.
std::optional<double> find_metric(const StageContext& context, const std::string& metric, const char* callback,
                                  bool& is_known);

/// Key in the state of a callback that decides by a metric. A state with the key of another metric is of no use.
std::string key_of_metric(const std::string& metric, MonitorMode mode);
bool is_of_metric(const NamedTensors& state, const std::string& metric, MonitorMode mode);

/// The worst value of a metric.
double worst_value(MonitorMode mode) noexcept;

}  // namespace lockstep
