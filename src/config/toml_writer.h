// A configuration as a TOML file. Torch-free.
#pragma once

#include <map>
#include <string>

#include <lockstep/config/train_config.h>

namespace lockstep {

/// One line per field that a file may set, with `comments` (field -> text) at the line ends.
std::string write_toml(const TrainConfig& config, const std::map<std::string, std::string>& comments);

}  // namespace lockstep
