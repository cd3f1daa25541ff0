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

int help(const CommandLine& line, const Variables& variables) {
  const int width = probe_terminal(STDOUT_FILENO, variables).width;
  const std::string name = line.arguments.empty() ? "lockstep" : line.arguments[0];
  const bool is_converter = name == "lockstep-convert";
  if (line.has("man") && !is_converter && name != "lockstep") {
    find_command(name);  // its page is that of all commands
  }
  fmt::print("{}", line.has("man")          ? is_converter ? converter_manual_page() : manual_page()
                            : line.arguments.empty() ? overview(width)
                                            : help_of(find_command(line.arguments[0]), width));
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
