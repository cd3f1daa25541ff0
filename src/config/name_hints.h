// Hints for unknown names of settings. Torch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// The name of the same key in a section, the name that another system uses for it, the nearest spelling, or
/// `otherwise`. `prefix`: in front of each known name in the hint.
std::string hint_for_unknown(std::string_view name, const std::vector<std::string>& known, std::string_view prefix,
                             std::string_view otherwise);

}  // namespace lockstep
