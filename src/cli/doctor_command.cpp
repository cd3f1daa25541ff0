#include "cli/doctor_command.h"

#include <limits>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/terminal.h"
#include "base/text.h"
#include "cli/doctor/facts.h"
#include "cli/doctor/findings.h"
#include "cli/doctor/report.h"

namespace lockstep {
namespace {

constexpr std::string_view kUsage =
    "usage: lockstep doctor [--json] [--run-dir DIR] [--nprocs N] [--port P]\n\n"
    "Checks whether training can work on this machine: versions and driver, cores, memory and limits, GPUs, network,\n"
    "launcher and variables, and the directory for runs. Prints OK, WARN or FAIL for each, with a fix.\n\n"
    "  --run-dir DIR   directory for runs; some files are written and removed there (default: this directory)\n"
    "  --nprocs N      ranks on this machine (default: those of the launcher, else one per GPU)\n"
    "  --port P        port of the rendezvous (default: MASTER_PORT, else 29500)\n"
    "  --json          one JSON object, which docs/doctor.md describes\n\n"
    "exit code: 0 nothing failed, 1 something failed, 2 usage\n";

int number(const std::string& flag, const std::string& text, int most) {
  const auto value = parse_int(text);
  if (!value || *value < 1 || *value > most) {
    throw ConfigError(fmt::format("doctor: {} {}: expected a number from 1 to {}", flag, printable(text), most));
  }
  return static_cast<int>(*value);
}

struct DoctorFlags {
  FactsRequest request{.run_dir = "."};
  bool json = false;
};

DoctorFlags parse_flags(std::span<const std::string> args) {
  constexpr int kMaxRanks = 1 << 16;
  constexpr int kMaxPort = 65535;
  DoctorFlags flags;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string flag = args[i].substr(0, args[i].find('='));
    if (args[i] == "--json") {
      flags.json = true;
      continue;
    }
    if (flag != "--run-dir" && flag != "--run_dir" && flag != "--nprocs" && flag != "--port") {
      throw ConfigError(fmt::format("doctor: {}: unknown argument", printable(args[i])),
                        "expected --json, --run-dir, --nprocs or --port; see lockstep doctor --help");
    }
    if (flag == args[i] && i + 1 == args.size()) {
      throw ConfigError(fmt::format("doctor: {} has no value", flag), "see lockstep doctor --help");
    }
    const std::string value = flag == args[i] ? args[++i] : args[i].substr(flag.size() + 1);
    if (flag == "--nprocs") {
      flags.request.ranks = number(flag, value, kMaxRanks);
    } else if (flag == "--port") {
      flags.request.port = number(flag, value, kMaxPort);
    } else if (value.empty()) {
      throw ConfigError(fmt::format("doctor: {} is empty", flag), "give a directory");
    } else {
      flags.request.run_dir = value;
    }
  }
  return flags;
}

}  // namespace

int doctor_command(std::span<const std::string> args, const Variables& variables) {
  if (args.size() == 1 && (args[0] == "--help" || args[0] == "-h")) {
    fmt::print("{}", kUsage);
    return 0;
  }
  const DoctorFlags flags = parse_flags(args);
  const Facts facts = collect_facts(flags.request, variables);
  const std::vector<Finding> findings = judge(facts);
  fmt::print("{}", flags.json ? dump_json(doctor_json(facts, findings)) + '\n'
                              : doctor_text(facts, findings, probe_terminal(STDOUT_FILENO, variables).width));
  return static_cast<int>(has_failure(findings) ? ExitCode::failed : ExitCode::ok);
}

}  // namespace lockstep
