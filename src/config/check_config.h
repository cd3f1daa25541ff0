// check_config() with the origin of each value for its messages. Torch-free.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/config/train_config.h>

namespace lockstep {

/// `labels`: field -> how its value was given ("--batch_size -3", "run.toml:2: batch_size = -3"); default: its flag.
std::vector<Problem> check_config(const TrainConfig& config, const std::map<std::string, std::string>& labels);

/// False: a value of `resume` that names a checkpoint, which may be another run's.
bool resumes_itself(std::string_view resume);

}  // namespace lockstep
