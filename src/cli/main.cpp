// The command line tool: one file per command, and the list of commands in commands.cpp.
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <new>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/version.h>

#include "base/descriptor.h"
#include "base/standard_output.h"
#include "base/terminal.h"
#include "cli/commands.h"

namespace lockstep {
namespace {

int run(std::span<const std::string> args, const Variables& variables) {
  if (args.empty() || args.front() == "--help" || args.front() == "-h") {
    return execute(kHelpCommand, {}, variables);
  }
  if (args.front() == "--version") {
    fmt::print("lockstep {}\n", LOCKSTEP_VERSION);
    return 0;
  }
  return execute(find_command(args.front()), args.subspan(1), variables);
}

/// Returns the exit code.
int fail(const std::exception& error) {
  std::fflush(stdout);  // the error is the last line, also where both streams go to one file
  write_line(error_text(error));
  return static_cast<int>(exit_code_of(error));
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // an output that reaches the file size limit is an error, not the end of the process
  lockstep::open_standard_descriptors();
  const std::vector<std::string> args(argv + 1, argv + argc);
  try {
    const int code = lockstep::run(args, lockstep::read_environment());
    lockstep::write_output();
    return code;
  } catch (const std::filesystem::filesystem_error& error) {
    return lockstep::fail(lockstep::IoError(error.what(), {}, error.code().value()));
  } catch (const std::system_error& error) {  // of fmt::print
    return lockstep::fail(lockstep::IoError(fmt::format("cannot write to standard output: {}", error.code().message()),
                                            {}, error.code().value()));
  } catch (const std::bad_alloc&) {
    return lockstep::fail(lockstep::Error("out of memory", "close other programs, or raise the limit (ulimit -v)"));
  } catch (const std::exception& error) {
    return lockstep::fail(error);
  }
}
