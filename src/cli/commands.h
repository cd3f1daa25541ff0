// The commands of the tool. Torch-free.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <lockstep/base/variables.h>

namespace lockstep {

struct Command {
  std::string_view name{};
  std::string_view arguments{};  ///< for the usage
  std::string_view help{};
  std::string_view words{};  ///< flags and words that completion offers after it, separated by blanks
  bool settings = false;     ///< it also takes the settings of a run as flags
  int (*run)(std::span<const std::string> args,
             const Variables& variables) = nullptr;  ///< `args`: those after the name
};

std::span<const Command> commands();

}  // namespace lockstep
