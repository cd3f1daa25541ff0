#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/terminal.h"
#include "cli/commands.h"
#include "cli/doctor/facts.h"
#include "cli/doctor/findings.h"
#include "cli/doctor/output.h"

namespace lockstep {
namespace {

constexpr FlagRow kFlags[] = {
    {"run-dir", "DIR", "directory for runs; some files are written and removed there (default: this directory)"},
    {"nprocs", "N", "ranks on this machine (default: those of the launcher, else one per GPU)"},
    {"port", "P", "port of the rendezvous (default: that of the launcher, else MASTER_PORT, else 29500)"},
    {"json", "", "print one JSON object, which docs/doctor.md describes"},
};

int doctor(const CommandLine& line, const Variables& variables) {
  constexpr int kMaxRanks = 1 << 16;
  constexpr int kMaxPort = 65535;
  const Facts facts = collect_facts({.run_dir = line.value("run-dir", "."),
                                     .ranks = line.number("nprocs", 1, kMaxRanks, 0),
                                     .port = line.number("port", 1, kMaxPort, 0)},
                                    variables);
  const std::vector<Finding> findings = judge(facts);
  fmt::print("{}", line.has("json") ? dump_json(doctor_json(facts, findings)) + '\n'
                                    : doctor_text(facts, findings, probe_terminal(STDOUT_FILENO, variables).width));
  return static_cast<int>(has_failure(findings) ? ExitCode::failed : ExitCode::ok);
}

}  // namespace

const Command kDoctorCommand{
    .name = "doctor",
    .summary = "check whether training can work on this machine",
    .description =
        "Checks whether training can work on this machine: versions and driver, cores, memory and limits, GPUs, "
        "network, launcher and variables, and the directory for runs. Prints OK, WARN or FAIL for each, with a fix.",
    .exit_codes = "0 nothing failed, 1 something failed, 2 usage",
    .flags = kFlags,
    .run = doctor};

}  // namespace lockstep
