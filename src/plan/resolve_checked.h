// The plan for settings that were checked before. Torch-free.
#pragma once

#include <optional>
#include <vector>

#include <lockstep/plan/plan.h>

namespace lockstep {

/// As resolve(), which checks the settings itself. Throws: ConfigError with `problems`, which that check found, and
/// with those of the plan.
Plan resolve_checked(const TrainConfig& asked, std::vector<Problem> problems, const Hardware& hardware,
                     const std::optional<Identity>& identity, LaunchFacts facts = {});

}  // namespace lockstep
