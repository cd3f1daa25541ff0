// The command line tool: one file per command, and the list of commands in commands.cpp.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
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
  } catch (const std::filesystem::filesystem_error& error) {
    const lockstep::IoError failure(error.what(), {}, error.code().value());
    lockstep::write_line(lockstep::error_text(failure));
    return static_cast<int>(lockstep::exit_code_of(failure));
  } catch (const std::system_error& error) {  // of fmt::print
    const lockstep::IoError output(fmt::format("cannot write to standard output: {}", error.code().message()), {},
                                   error.code().value());
    lockstep::write_line(lockstep::error_text(output));
    return static_cast<int>(lockstep::exit_code_of(output));
  } catch (const std::bad_alloc&) {
    const lockstep::Error failure("out of memory", "close other programs, or raise the limit (ulimit -v)");
    lockstep::write_line(lockstep::error_text(failure));
    return static_cast<int>(lockstep::exit_code_of(failure));
  } catch (const std::exception& error) {
    lockstep::write_line(lockstep::error_text(error));
    return static_cast<int>(lockstep::exit_code_of(error));
  }
}
