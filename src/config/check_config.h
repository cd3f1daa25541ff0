// The check behind check_config(), with the place each value came from. Torch-free.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <lockstep/config/train_config.h>

namespace lockstep {

/// `labels`: field -> how its value was given ("--batch_size -3", "run.toml:2: batch_size = -3"); missing: as its flag.
std::vector<Problem> check_config(const TrainConfig& config, const std::map<std::string, std::string>& labels);

}  // namespace lockstep
