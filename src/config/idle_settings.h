// Settings that do nothing because the feature that they belong to is off. Torch-free.
#pragma once

#include <string>
#include <vector>

#include <lockstep/config/train_config.h>

namespace lockstep {

struct IdleSetting {
  std::string name{};    ///< "early_stop.patience"
  std::string cause{};   ///< "early_stop.metric": the setting that decides
  std::string reason{};  ///< "without early_stop.metric"
  std::string hint{};
};

/// Of the settings that differ from those of the program. Settings of a feature that only a run with several ranks,
/// or with validation data, has are not idle: one configuration may serve many runs.
std::vector<IdleSetting> find_idle_settings(const TrainConfig& of_program, const TrainConfig& config);

}  // namespace lockstep
