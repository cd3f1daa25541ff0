// The commands of the tool, one file each. Torch-free.
#pragma once

#include <span>
#include <string_view>

#include "cli/command_line.h"

namespace lockstep {

extern const Command kStartCommand;
extern const Command kRunCommand;
extern const Command kPlanCommand;
extern const Command kConfigCommand;
extern const Command kListCommand;
extern const Command kTopCommand;
extern const Command kReportCommand;
extern const Command kVerifyCommand;
extern const Command kCompareCommand;
extern const Command kCtlCommand;
extern const Command kDoctorCommand;
extern const Command kTestCommand;
extern const Command kSystemCommand;
extern const Command kCompletionCommand;
extern const Command kHelpCommand;

/// In the order of `lockstep --help`.
std::span<const Command* const> commands();

/// Throws: ConfigError if there is none.
const Command& find_command(std::string_view name);

}  // namespace lockstep
