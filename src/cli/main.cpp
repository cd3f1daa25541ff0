// The command line tool: one file per command, and the table of commands in commands.cpp.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/version.h>

#include "base/descriptor.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/commands.h"

namespace lockstep {
namespace {

std::string usage() {
  std::string text = "usage: lockstep COMMAND\n\n";
  for (const Command& command : commands()) {
    text += fmt::format("  {:<34} {}\n", fmt::format("{} {}", command.name, command.arguments), command.help);
  }
  return text + "  --version\n\nlockstep COMMAND --help explains a command.\n";
}

int run(std::span<const std::string> args, const Variables& variables) {
  const std::string first = args.empty() ? "--help" : args.front();
  for (const Command& command : commands()) {
    if (command.name == first) {
      return command.run(args.subspan(1), variables);
    }
  }
  if (first == "--help" || first == "-h") {
    fmt::print("{}", usage());
    return 0;
  }
  if (first == "--version") {
    fmt::print("lockstep {}\n", LOCKSTEP_VERSION);
    return 0;
  }
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    names.emplace_back(command.name);
  }
  const auto near = closest(first, names);
  throw ConfigError(fmt::format("{}: unknown command", printable(first)),
                    near ? fmt::format("did you mean lockstep {}?", *near)
                         : fmt::format("expected one of {}; see lockstep --help", join(names, ", ")));
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // an output that reaches the file size limit is an error, not the end of the process
  lockstep::open_standard_descriptors();
  const std::vector<std::string> args(argv + 1, argv + argc);
  try {
    const int code = lockstep::run(args, lockstep::read_environment());
    if (std::fflush(stdout) != 0) {
      throw lockstep::IoError(fmt::format("cannot write to standard output: {}", std::strerror(errno)), {}, errno);
    }
    return code;
  } catch (const std::system_error& error) {  // of fmt::print
    const lockstep::IoError output(fmt::format("cannot write to standard output: {}", error.code().message()), {},
                                   error.code().value());
    lockstep::write_line(lockstep::error_text(output));
    return static_cast<int>(lockstep::exit_code_of(output));
  } catch (const std::exception& error) {
    lockstep::write_line(lockstep::error_text(error));
    return static_cast<int>(lockstep::exit_code_of(error));
  }
}
