// Prefixes of the names of metrics. Torch-free.
#pragma once

#include <string_view>

namespace lockstep {

inline constexpr std::string_view kValidationPrefix = "val_";
inline constexpr std::string_view kTestPrefix = "test_";
inline constexpr std::string_view kEpochPrefix = "epoch_";  ///< of the means of an epoch (report.epoch_means)

}  // namespace lockstep
