#include <optional>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include <lockstep/base/file_system.h>

#include "base/json.h"
#include "base/terminal.h"
#include "cli/commands.h"
#include "cli/doctor/facts.h"
#include "cli/doctor/output.h"
#include "cli/runs/run_data.h"
#include "cli/runs/run_summary.h"
#include "environment/process_name.h"

namespace lockstep {
namespace {

constexpr FlagRow kFlags[] = {
    {"run", "RUN", "also what an issue should say about the run in this directory"},
    {"json", "", "print one JSON object, which docs/doctor.md describes"},
};

int system_facts(const CommandLine& line, const Variables& variables) {
  const Facts facts = collect_facts({}, variables);
  std::optional<Json> run;
  if (line.has("run")) {
    run = run_summary(read_run(real_file_system(), line.value("run", {})), {host_name()});
  }
  if (line.has("json")) {
    Json json = system_json(facts);
    if (run) {
      json["run"] = *std::move(run);
    }
    fmt::print("{}\n", dump_json(json));
    return 0;
  }
  const int width = probe_terminal(STDOUT_FILENO, variables).width;
  fmt::print("{}{}", system_text(facts, width), run ? "\nrun\n" + summary_text(*run, text_columns(width)) : "");
  return 0;
}

}  // namespace

const Command kSystemCommand{
    .name = "system",
    .summary = "print the facts of this machine, and of a run, for an issue",
    .description =
        "Prints what an issue should say about this machine: versions, cores, memory, limits, driver, GPUs, launcher, "
        "and variables that change how a run works. With --run also the state of a run, its build, the settings that "
        "differ from lockstep's defaults, the last failure and the last events. It has no names of hosts, users and "
        "directories, and no addresses; in what a program has written itself, look before you send it.",
    .exit_codes = "0, 2 usage, or no run in RUN",
    .flags = kFlags,
    .run = system_facts};

}  // namespace lockstep
