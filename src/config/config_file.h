// A TOML or JSON file as a list of settings. Torch-free.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "config/field_value.h"

namespace lockstep {

struct FileSetting {
  std::string name{};  ///< "optim.lr"
  FileValue value{};
  std::string place{};  ///< "run.toml:3", or "run.json"
};

/// In the order of the file. Throws: ConfigError if the file cannot be read or is not valid TOML or JSON (the extension
/// decides).
std::vector<FileSetting> read_config_file(const std::filesystem::path& file);

/// `label` is the name of the file in places and errors.
std::vector<FileSetting> parse_config_toml(std::string_view text, const std::string& label);
std::vector<FileSetting> parse_config_json(std::string_view text, const std::string& label);

}  // namespace lockstep
