// The command line of a rank whose launcher has read the --config file. Torch-free.
#pragma once

#include <optional>
#include <span>
#include <string>

#include <lockstep/config/config_io.h>

namespace lockstep {

/// As parse_invocation() of config_io.h. If `config_text` has a value, this is the text of the --config file, which is
/// not read then. If it has none, it gets the text that was read.
Invocation parse_invocation(const TrainConfig& defaults, std::span<const std::string> args, const Variables& variables,
                            const Flags& flags, std::optional<std::string>& config_text);

}  // namespace lockstep
