#include "cli/system_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/terminal.h"
#include "base/text.h"
#include "cli/doctor/facts.h"
#include "cli/doctor/report.h"

namespace lockstep {
namespace {

constexpr std::string_view kUsage =
    "usage: lockstep system [--json]\n\n"
    "Prints what an issue should say about this machine: versions, cores, memory, limits, driver, GPUs, launcher, and\n"
    "variables that change how a run works. It has no names of hosts, users, programs and directories, and no "
    "addresses.\n\n"
    "exit code: 0, or 2 usage\n";

}  // namespace

int system_command(std::span<const std::string> args, const Variables& variables) {
  if (args.size() == 1 && (args[0] == "--help" || args[0] == "-h")) {
    fmt::print("{}", kUsage);
    return 0;
  }
  const bool json = args.size() == 1 && args[0] == "--json";
  if (!args.empty() && !json) {
    throw ConfigError(fmt::format("system: {}: unknown argument", printable(args.back())),
                      "lockstep system [--json]; see lockstep system --help");
  }
  const Facts facts = collect_facts({}, variables);
  fmt::print("{}", json ? dump_json(system_json(facts)) + '\n'
                        : system_text(facts, probe_terminal(STDOUT_FILENO, variables).width));
  return 0;
}

}  // namespace lockstep
