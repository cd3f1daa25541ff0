// What the name of a metric says.
#pragma once

#include <string_view>

#include <lockstep/config/train_config.h>
#include <lockstep/trainer/callback.h>

namespace lockstep {

inline constexpr std::string_view kValidationPrefix = "val_";
inline constexpr std::string_view kEpochPrefix = "epoch_";  ///< of the means of an epoch (report.epoch_means)

/// The stage whose metrics have this one.
inline Stage stage_of_metric(std::string_view name, const TrainConfig& config) {
  return name.starts_with(kValidationPrefix)                           ? Stage::validation_end
         : config.report.epoch_means && name.starts_with(kEpochPrefix) ? Stage::epoch_report
                                                                       : Stage::report;
}

}  // namespace lockstep
