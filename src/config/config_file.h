// A TOML or JSON file as a list of settings. Torch-free.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "config/field_value.h"

namespace lockstep {

struct FileSetting {
  std::string name{};  ///< "optim.lr"
  FileValue value{};
  std::string place{};         ///< "run.toml:3", or "run.json"
  std::size_t first_line = 0;  ///< in a TOML file, from 1
  std::size_t last_line = 0;
};

/// In the order of the file. Throws: ConfigError if the file cannot be read or is not valid TOML or JSON (the extension
/// decides).
std::vector<FileSetting> read_config_file(const std::filesystem::path& file);

/// The text of such a file, 1 MiB at most. Throws: ConfigError if it cannot be read.
std::string read_config_text(const std::filesystem::path& file);
/// As read_config_file(), if its text is known.
std::vector<FileSetting> parse_config_text(std::string_view text, const std::filesystem::path& file);

/// `label` is the name of the file in places and errors.
std::vector<FileSetting> parse_config_toml(std::string_view text, const std::string& label);
std::vector<FileSetting> parse_config_json(std::string_view text, const std::string& label);

}  // namespace lockstep
