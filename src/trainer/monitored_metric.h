// A metric by which a callback decides.
#pragma once

#include <optional>
#include <string>

#include <lockstep/trainer/callback.h>

namespace lockstep {

/// Throws: ConfigError naming `callback` if the first report or validation that should have the metric lacks it; later
/// ones may. nullopt: not measured at this stage. `is_known`: it was measured before; is set.
std::optional<double> find_metric(const StageContext& context, const std::string& metric, const char* callback,
                                  bool& is_known);

/// The worst value of a metric.
double worst_value(MonitorMode mode) noexcept;

}  // namespace lockstep
