// What `lockstep list` prints. Torch-free.
#pragma once

#include <span>
#include <string>

#include "cli/runs/run_data.h"

namespace lockstep {

/// The table that the command prints. `now`: seconds since 1970, for the age.
std::string list_table(std::span<const RunData> runs, double now);
Json list_json(std::span<const RunData> runs, const std::string& directory);

}  // namespace lockstep
