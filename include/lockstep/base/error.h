// lockstep/base/error.h
//
// Every error of the library and the exit codes that scripts may rely on. Torch-free.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace [[gnu::visibility("default")]] lockstep {

/// Exit codes of every lockstep program; the same for a worker, the supervisor and the tools.
/// A process killed by signal N counts as 128 + N.
enum class ExitCode : int {
  ok = 0,
  failed = 1,         ///< the user's code or a worker threw
  usage = 2,          ///< bad flag, configuration or environment; nothing was started
  bad_data = 65,      ///< no valid checkpoint, or one that does not fit this model or data
  internal = 70,      ///< a failed assertion: our fault
  io = 74,            ///< disk full, permission, I/O error
  stopped = 75,       ///< stopped on request after saving; run again to resume
  peer_lost = 76,     ///< another rank or the network went away
  disagree = 78,      ///< ranks disagree about configuration, build, parameters or collectives
  timeout = 124,      ///< start-up, rendezvous or stall deadline
  cannot_run = 126,   ///< the launcher found the program but cannot run it
  not_found = 127,    ///< the launcher cannot find the program
  interrupted = 130,  ///< Ctrl-C, after saving
};

/// Base of every exception that lockstep throws. `what()` says what was found and what was expected (lower case, no
/// full stop); `hint()` says what to do, and may be empty.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what, std::string hint = {}, ExitCode code = ExitCode::failed)
      : std::runtime_error(what), hint_(std::move(hint)), code_(code) {}
  const std::string& hint() const noexcept { return hint_; }
  ExitCode exit_code() const noexcept { return code_; }

 private:
  std::string hint_;
  ExitCode code_;
};

/// One thing that is wrong with a configuration, and its fix.
struct Problem {
  std::string what{};  ///< "--devices cuda:0,4: GPU 4 does not exist, this machine has 2 (0-1)"
  std::string hint{};  ///< "use --devices cuda:0,1"
};

/// Wrong settings. Carries every problem found, not the first; thrown before any process, GPU or network work.
class ConfigError : public Error {
 public:
  explicit ConfigError(std::vector<Problem> problems);
  explicit ConfigError(const std::string& what, std::string hint = {});
  const std::vector<Problem>& problems() const noexcept { return problems_; }

 private:
  std::vector<Problem> problems_;
};

/// A process could not be started or watched.
class LaunchError : public Error {
 public:
  explicit LaunchError(const std::string& what, std::string hint = {}, ExitCode code = ExitCode::cannot_run)
      : Error(what, std::move(hint), code) {}
};

/// A collective or the rendezvous failed: a peer is gone, late, or does something else.
class CommError : public Error {
 public:
  explicit CommError(const std::string& what, std::string hint = {}, ExitCode code = ExitCode::peer_lost)
      : Error(what, std::move(hint), code) {}
};

/// A checkpoint is missing, damaged, or does not fit.
class CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& what, std::string hint = {}, ExitCode code = ExitCode::bad_data)
      : Error(what, std::move(hint), code) {}
};

/// A data set or a sample is unusable.
class DataError : public Error {
 public:
  explicit DataError(const std::string& what, std::string hint = {}, ExitCode code = ExitCode::bad_data)
      : Error(what, std::move(hint), code) {}
};

/// A file operation failed; `what()` names path and errno text, `number()` is the errno (0: none).
class IoError : public Error {
 public:
  explicit IoError(const std::string& what, std::string hint = {}, int number = 0)
      : Error(what, std::move(hint), ExitCode::io), number_(number) {}
  int number() const noexcept { return number_; }

 private:
  int number_;
};

/// "error: what\n  hint: ..." for a terminal; a ConfigError lists all its problems. An exception that is not ours has
/// its type in front: "error: std::runtime_error: what".
std::string error_text(const std::exception& error);

/// The exit code an exception stands for: its own if it is an Error, else ExitCode::failed.
ExitCode exit_code_of(const std::exception& error) noexcept;

namespace detail {
/// Hears of a failed assertion instead of standard error; nullptr: nobody. Returns the one before.
using AssertionListener = void (*)(const char* text) noexcept;
AssertionListener set_assertion_listener(AssertionListener listener) noexcept;

[[noreturn]] void assertion_failed(const char* condition, const char* why, const char* file, int line) noexcept;
}  // namespace detail

}  // namespace lockstep

/// Our own mistakes only (always on): says condition, reason and place, and ends the process with ExitCode::internal.
#define LOCKSTEP_ASSERT(condition, why) \
  ((condition) ? static_cast<void>(0) : ::lockstep::detail::assertion_failed(#condition, why, __FILE__, __LINE__))
