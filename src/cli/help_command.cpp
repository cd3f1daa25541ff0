#include <string>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

#include "base/terminal.h"
#include "cli/commands.h"
#include "cli/manual_page.h"

namespace lockstep {
namespace {

constexpr FlagRow kFlags[] = {{"man", "", "print the manual page lockstep(1), or lockstep-convert(1) after that name"}};

std::string overview(int width) {
  const HelpLayout layout(width);
  std::string text = "usage: lockstep COMMAND\n\n";
  for (const Command* command : commands()) {
    text += layout.entry(fmt::format("{} {}", command->name, command->arguments), command->summary);
  }
  return text + layout.entry("--version", "print the version") + "\nlockstep COMMAND --help explains a command.\n";
}

/// Throws: ConfigError if there is no command of this name.
std::string manual_of(std::string_view name) {
  if (name == "lockstep-convert") {
    return converter_manual_page();
  }
  if (name != "lockstep") {
    find_command(name);  // refuses what is no command; one page describes all commands
  }
  return manual_page();
}

int help(const CommandLine& line, const Variables& variables) {
  const bool is_general = line.arguments.empty();
  if (line.has("man")) {
    fmt::print("{}", manual_of(is_general ? "lockstep" : line.arguments[0]));
    return 0;
  }
  const int width = probe_terminal(STDOUT_FILENO, variables).width;
  fmt::print("{}", is_general ? overview(width) : help_of(find_command(line.arguments[0]), width));
  return 0;
}

}  // namespace

const Command kHelpCommand{.name = "help",
                           .arguments = "[COMMAND]",
                           .summary = "explain a command",
                           .description = "Lists the commands, or explains one: the same as lockstep COMMAND --help.",
                           .exit_codes = "0, 2 usage",
                           .flags = kFlags,
                           .run = help};

}  // namespace lockstep
