#include "trainer/monitored_metric.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "trainer/run_metrics.h"
#include "trainer/validate.h"

namespace lockstep {

std::optional<double> find_metric(const StageContext& context, const std::string& metric, const char* callback,
                                  bool& is_known) {
  const std::int64_t window = context.plan.config.report.every_steps;
  if (context.stage == Stage::report && (window == 0 || context.state.step % window != 0)) {
    return std::nullopt;  // at the end of a run, which may be continued
  }
  const auto found = std::ranges::find(*context.metrics, metric, &Metrics::value_type::first);
  if (found != context.metrics->end()) {
    is_known = true;
    return found->second;
  }
  const Stage expected = metric.starts_with(kValidationPrefix) ? Stage::validation_end
                         : context.plan.config.report.epoch_means && metric.starts_with(kEpochPrefix)
                             ? Stage::epoch_report
                             : Stage::report;
  if (is_known || context.stage != expected) {
    return std::nullopt;
  }
  std::vector<std::string> names;
  std::ranges::transform(*context.metrics, std::back_inserter(names), &Metrics::value_type::first);
  throw ConfigError(fmt::format("{}: found no metric {}", callback, metric),
                    fmt::format("use one of {}", join(names, ", ")));
}

double worst_value(MonitorMode mode) noexcept {
  return mode == MonitorMode::min ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
}

}  // namespace lockstep
