// The command line tool: one file per command.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/version.h>

#include "base/descriptor.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/compare_command.h"
#include "cli/ctl_command.h"
#include "cli/doctor_command.h"
#include "cli/run_command.h"
#include "cli/system_command.h"
#include "cli/verify_command.h"

namespace lockstep {
namespace {

constexpr std::string_view kUsage =
    "usage: lockstep COMMAND\n\n"
    "  run [flags] -- program   start and watch one process per rank; see lockstep run --help\n"
    "  verify DIR               read every byte of a run's checkpoints; see lockstep verify --help\n"
    "  compare A B              find the first difference of two runs; see lockstep compare --help\n"
    "  ctl RUN COMMAND          stop, save, validate or report a running training; see lockstep ctl --help\n"
    "  doctor                   check whether training can work on this machine; see lockstep doctor --help\n"
    "  system                   print the facts of this machine for an issue; see lockstep system --help\n"
    "  --version\n";

int command(std::span<const std::string> args, const Variables& variables) {
  const std::string first = args.empty() ? "--help" : args.front();
  if (first == "run") {
    return run_command(args.subspan(1), variables);
  }
  if (first == "verify") {
    return verify_command(args.subspan(1));
  }
  if (first == "compare") {
    return compare_command(args.subspan(1));
  }
  if (first == "ctl") {
    return ctl_command(args.subspan(1));
  }
  if (first == "doctor") {
    return doctor_command(args.subspan(1), variables);
  }
  if (first == "system") {
    return system_command(args.subspan(1), variables);
  }
  if (first == "--help" || first == "-h") {
    fmt::print("{}", kUsage);
    return 0;
  }
  if (first == "--version") {
    fmt::print("lockstep {}\n", LOCKSTEP_VERSION);
    return 0;
  }
  throw ConfigError(fmt::format("{}: unknown command", printable(first)),
                    "expected run, verify, compare, ctl, doctor or system; see lockstep --help");
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // an output that reaches the file size limit is an error, not the end of the process
  lockstep::open_standard_descriptors();
  const std::vector<std::string> args(argv + 1, argv + argc);
  try {
    const int code = lockstep::command(args, lockstep::read_environment());
    if (std::fflush(stdout) != 0) {
      throw lockstep::IoError(fmt::format("cannot write to standard output: {}", std::strerror(errno)), {}, errno);
    }
    return code;
  } catch (const std::exception& error) {
    lockstep::write_line(lockstep::error_text(error));
    return static_cast<int>(lockstep::exit_code_of(error));
  }
}
