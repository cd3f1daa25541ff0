#include <fmt/format.h>
#include <unistd.h>

#include "base/terminal.h"
#include "cli/commands.h"
#include "cli/doctor/facts.h"
#include "cli/doctor/output.h"

namespace lockstep {
namespace {

constexpr FlagRow kFlags[] = {{"json", "", "print one JSON object, which docs/doctor.md describes"}};

int system_facts(const CommandLine& line, const Variables& variables) {
  const Facts facts = collect_facts({}, variables);
  fmt::print("{}", line.has("json") ? dump_json(system_json(facts)) + '\n'
                                    : system_text(facts, probe_terminal(STDOUT_FILENO, variables).width));
  return 0;
}

}  // namespace

const Command kSystemCommand{
    .name = "system",
    .summary = "print the facts of this machine for an issue",
    .description =
        "Prints what an issue should say about this machine: versions, cores, memory, limits, driver, GPUs, launcher, "
        "and variables that change how a run works. It has no names of hosts, users, programs and directories, and no "
        "addresses.",
    .exit_codes = "0, 2 usage",
    .flags = kFlags,
    .run = system_facts};

}  // namespace lockstep
