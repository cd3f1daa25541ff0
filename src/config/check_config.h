// check_config() with the origin of each value for its messages. Torch-free.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/config/train_config.h>

namespace lockstep {

/// `labels`: field -> how its value was given ("--batch_size -3", "run.toml:2: batch_size = -3"); default: its flag.
/// `unknown`: fields for which the program may have another value than `config`; nothing is said of contradictions to
/// them.
std::vector<Problem> check_config(const TrainConfig& config, const std::map<std::string, std::string>& labels,
                                  const std::set<std::string, std::less<>>& unknown);

/// False: a value of `resume` that names a checkpoint, which may be another run's.
bool resumes_itself(std::string_view resume);

}  // namespace lockstep
