// What the name of a metric says.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <lockstep/base/error.h>
#include <lockstep/config/train_config.h>
#include <lockstep/trainer/callback.h>

#include "base/metric_prefixes.h"

namespace lockstep {

inline constexpr std::string_view kSpeed = "samples_per_s";  ///< of each report

/// The value of the metric; nullptr: there is none.
const double* find_metric(const Metrics& metrics, std::string_view name);
/// Adds the metric, or replaces its value.
void set_metric(Metrics& metrics, const std::string& name, double value);

/// Throws: Error if reports and checkpoints cannot have a metric of this name.
void check_metric_name(std::string_view name);

/// The stage whose metrics include this one.
Stage stage_of_metric(std::string_view name, const TrainConfig& config);

/// Throws: Error if a metric of a report, of the steps or of callbacks, has a prefix that says something else.
void check_names_of_training(const Metrics& metrics, const TrainConfig& config, bool validates);

/// Warns about metrics of a validation whose names have its prefix already: they are reported with two.
void warn_about_names_of_validation(const Metrics& metrics);

/// A report may lack the metrics of the steps, because all of them were left out. Then nothing says which ones there
/// are.
bool may_lack_metrics(const Metrics& metrics, const TrainConfig& config);

/// For a callback whose metric is not among those that were measured, during the training.
ConfigError metric_not_found(std::string_view callback, std::string_view name, const Metrics& measured);

/// For the end of a training in which `asker`, a callback or a setting, has not met its metric, or with `is_measured`
/// only as NaN or infinity.
std::string never_measured(std::string_view asker, std::string_view name, bool is_measured);

/// "did you mean val_loss? use one of loss, lr, val_loss". `names`: of all metrics there are.
std::string hint_for_metric(std::string_view name, std::span<const std::string> names);
/// The same during the training, with the setting that finds a wrong name before it.
std::string late_hint_for_metric(std::string_view name, std::span<const std::string> names);

}  // namespace lockstep
