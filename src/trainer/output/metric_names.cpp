#include "trainer/output/metric_names.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/log.h>

#include "base/mapped.h"
#include "base/text.h"

namespace lockstep {

const double* find_metric(const Metrics& metrics, std::string_view name) {
  const auto found = std::ranges::find(metrics, name, &Metrics::value_type::first);
  return found == metrics.end() ? nullptr : &found->second;
}

void check_metric_name(std::string_view name) {
  if (name.empty() || name.find('\n') != std::string_view::npos || !is_utf8(name)) {
    throw Error(fmt::format("found the metric name '{}', expected one line of UTF-8 text", printable(name)),
                "give each metric that a step returns or a callback logs a name in UTF-8, without line breaks");
  }
}

void set_metric(Metrics& metrics, const std::string& name, double value) {
  const auto found = std::ranges::find(metrics, name, &Metrics::value_type::first);
  if (found == metrics.end()) {
    metrics.emplace_back(name, value);
  } else {
    found->second = value;
  }
}

Stage stage_of_metric(std::string_view name, const TrainConfig& config) {
  if (name.starts_with(kValidationPrefix)) {
    return Stage::validation_end;
  }
  return config.report.epoch_means && name.starts_with(kEpochPrefix) ? Stage::epoch_report : Stage::report;
}

void check_names_of_training(const Metrics& metrics, const TrainConfig& config, bool validates) {
  for (const auto& [name, value] : metrics) {
    if (validates && name.starts_with(kValidationPrefix)) {
      throw Error(
          fmt::format("the training reports a metric '{}', but this prefix is reserved for validation metrics", name),
          fmt::format("give it a name that does not begin with {}", kValidationPrefix));
    }
    if (config.report.epoch_means && name.starts_with(kEpochPrefix)) {
      throw Error(
          fmt::format("the training reports a metric '{}', but --report.epoch_means reserves this prefix", name),
          fmt::format("give it a name that does not begin with {}", kEpochPrefix));
    }
  }
}

void warn_about_names_of_validation(const Metrics& metrics) {
  for (const auto& [name, value] : metrics) {
    for (const std::string_view prefix : {kValidationPrefix, std::string_view("val/")}) {
      if (name.starts_with(prefix)) {
        log_warning(fmt::format("the validation has a metric {0}, which is reported as {1}{0}: call it {2}",
                                printable(name), kValidationPrefix, printable(name.substr(prefix.size()))));
      }
    }
  }
}

bool may_lack_metrics(const Metrics& metrics, const TrainConfig& config) {
  return config.optim.non_finite == NonFinitePolicy::skip && find_metric(metrics, "loss") == nullptr;
}

ConfigError metric_not_found(std::string_view callback, std::string_view name, const Metrics& measured) {
  return ConfigError(fmt::format("{}: found no metric {}", callback, name),
                     late_hint_for_metric(name, mapped(measured, &Metrics::value_type::first)));
}

std::string never_measured(std::string_view asker, std::string_view name, bool is_measured) {
  if (is_measured) {
    return fmt::format("{}: found no finite value of {}", asker, name);
  }
  return fmt::format("{}: the training ended before {} was measured; see {}", asker, name,
                     name.starts_with(kValidationPrefix) ? "--validate.every_steps"
                     : name.starts_with(kEpochPrefix)    ? "--report.epoch_means"
                                                         : "--report.every_steps");
}

std::string hint_for_metric(std::string_view name, std::span<const std::string> names) {
  const auto near = closest(name, names);
  const bool of_validation = name.starts_with(kValidationPrefix);
  return fmt::format("{}use one of {}{}", near ? fmt::format("did you mean {}? ", *near) : "", fmt::join(names, ", "),
                     of_validation ? "" : fmt::format("; metrics of the validation begin with {}", kValidationPrefix));
}

std::string late_hint_for_metric(std::string_view name, std::span<const std::string> names) {
  return hint_for_metric(name, names) +
         (name.starts_with(kValidationPrefix) ? "; --validate.sanity_steps 1 finds this before the training" : "");
}

}  // namespace lockstep
