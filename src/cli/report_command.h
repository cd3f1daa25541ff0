// `lockstep report`: one HTML file about one run or several. Torch-free.
#pragma once

#include <span>
#include <string>

namespace lockstep {

/// `args`: the arguments after `lockstep report`. Writes the file and prints its name. Throws: ConfigError, IoError.
int report_command(std::span<const std::string> args);

}  // namespace lockstep
