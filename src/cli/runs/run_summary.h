// What an issue should say about a run: for `lockstep system --run`. Torch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "cli/runs/run_data.h"

namespace lockstep {

/// A text of a run without the names of machines, users and directories, and without addresses. `hosts`: the machines
/// whose names may be in it.
std::string without_names(std::string_view text, const std::vector<std::string>& hosts);

/// State, build, settings that differ from lockstep's defaults, the last failure and the last events. `hosts`: other
/// machines than those that the run names itself.
Json run_summary(const RunData& run, std::vector<std::string> hosts);

/// Its entries below each other.
std::string summary_text(const Json& summary, std::size_t columns);

}  // namespace lockstep
