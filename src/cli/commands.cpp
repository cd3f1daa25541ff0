#include "cli/commands.h"

#include <algorithm>
#include <iterator>
#include <string>

#include <fmt/format.h>

#include "base/mapped.h"
#include "base/text.h"

namespace lockstep {
namespace {

constexpr const Command* kCommands[] = {
    &kStartCommand,  &kRunCommand,    &kPlanCommand,   &kConfigCommand,     &kListCommand,
    &kTopCommand,    &kReportCommand, &kVerifyCommand, &kCompareCommand,    &kCtlCommand,
    &kDoctorCommand, &kTestCommand,   &kSystemCommand, &kCompletionCommand, &kHelpCommand,
};

}  // namespace

std::span<const Command* const> commands() { return kCommands; }

const Command& find_command(std::string_view name) {
  const auto found = std::ranges::find(kCommands, name, &Command::name);
  if (found != std::end(kCommands)) {
    return **found;
  }
  const auto names = mapped<std::string>(kCommands, &Command::name);
  throw ConfigError(fmt::format("{}: unknown command", name.empty() ? "\"\"" : printable(name)),
                    did_you_mean(name, names, "lockstep ", "see lockstep --help for all commands"));
}

}  // namespace lockstep
