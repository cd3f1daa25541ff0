// A configuration as a TOML file. Torch-free.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include <lockstep/config/program_value.h>
#include <lockstep/config/train_config.h>

namespace lockstep {

/// One line per field that a file may set, with `comments` (field -> text) at the line ends.
std::string write_toml(const TrainConfig& config, const std::map<std::string, std::string>& comments);

/// The section of the program's own flags.
inline constexpr std::string_view kProgramSection = "program";
std::string write_program_toml(std::span<const ProgramValue> values,
                               const std::map<std::string, std::string>& comments);

}  // namespace lockstep
