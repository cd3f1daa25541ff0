// lockstep/base/error.h
//
// All errors of the library, and the exit codes that scripts can rely on. Torch-free.
#pragma once

#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace [[gnu::visibility("default")]] lockstep {

/// Exit codes of every lockstep program: workers, the supervisor and the tools use the same ones.
/// A process killed by signal N counts as 128 + N.
enum class ExitCode : int {
  ok = 0,
  failed = 1,          ///< the user's code or a worker threw
  usage = 2,           ///< bad flag, configuration or environment; mostly before any process was started
  bad_data = 65,       ///< no valid checkpoint, or a checkpoint that does not match the model or the data
  internal = 70,       ///< a failed assertion: a bug in lockstep
  io = 74,             ///< disk full, permission, I/O error
  stopped = 75,        ///< stopped on request, after saving or before the training began; run again to resume
  peer_lost = 76,      ///< the connection to another rank was lost
  out_of_memory = 77,  ///< memory ran out, and the next start takes half the micro-batch (memory.halve_batch)
  disagree = 78,       ///< ranks disagree about configuration, build, parameters or collectives
  timeout = 124,       ///< a deadline passed: start-up, rendezvous or stall
  cannot_run = 126,    ///< the launcher found the program but cannot execute it
  not_found = 127,     ///< the launcher cannot find the program
  interrupted = 130,   ///< Ctrl-C, after saving or before the training began
};

/// Base of all lockstep exceptions. `what()` says what was found and what was expected (lower case, no full stop);
/// `hint()` says what to do and may be empty. A copy shares the texts, so it never throws.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what, std::string hint = {}, ExitCode code = ExitCode::failed)
      : std::runtime_error(what), hint_(std::make_shared<const std::string>(std::move(hint))), code_(code) {}
  Error(const Error&) noexcept = default;
  Error& operator=(const Error&) noexcept = default;
  const std::string& hint() const noexcept { return *hint_; }
  ExitCode exit_code() const noexcept { return code_; }

 private:
  std::shared_ptr<const std::string> hint_;
  ExitCode code_;
};

/// One problem in a configuration, and how to fix it.
struct Problem {
  std::string what{};  ///< "--devices cuda:0,4: GPU 4 does not exist, this machine has 2 (0-1)"
  std::string hint{};  ///< "use --devices cuda:0,1"
};

/// Invalid settings, with all problems. Those of flags, files and variables are found before any process or GPU work.
class ConfigError : public Error {
 public:
  explicit ConfigError(std::vector<Problem> problems);
  explicit ConfigError(const std::string& what, std::string hint = {});
  ConfigError(const ConfigError&) noexcept = default;
  ConfigError& operator=(const ConfigError&) noexcept = default;
  const std::vector<Problem>& problems() const noexcept { return *problems_; }

 private:
  std::shared_ptr<const std::vector<Problem>> problems_;
};

/// A process could not be started or watched.
class LaunchError : public Error {
 public:
  explicit LaunchError(const std::string& what, std::string hint = {}, ExitCode code = ExitCode::cannot_run)
      : Error(what, std::move(hint), code) {}
};

/// A collective or the rendezvous failed: another rank is gone, is late, or runs a different operation.
class CommError : public Error {
 public:
  explicit CommError(const std::string& what, std::string hint = {}, ExitCode code = ExitCode::peer_lost)
      : Error(what, std::move(hint), code) {}
};

/// A checkpoint is missing, damaged, or does not match the model.
class CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& what, std::string hint = {}, ExitCode code = ExitCode::bad_data)
      : Error(what, std::move(hint), code) {}
};

/// A data set or a sample cannot be used.
class DataError : public Error {
 public:
  explicit DataError(const std::string& what, std::string hint = {}, ExitCode code = ExitCode::bad_data)
      : Error(what, std::move(hint), code) {}
};

/// A file operation failed. `what()` contains the path and the errno text; `number()` is the errno (0: none).
class IoError : public Error {
 public:
  explicit IoError(const std::string& what, std::string hint = {}, int number = 0)
      : Error(what, std::move(hint), ExitCode::io), number_(number) {}
  int number() const noexcept { return number_; }

 private:
  int number_;
};

/// "error: what\n  hint: ..." for a terminal; for a ConfigError all its problems. For an exception of another library
/// the type comes first: "error: std::runtime_error: what".
std::string error_text(const std::exception& error);

/// The exit code for an exception: its own code if it is an Error, else ExitCode::failed.
ExitCode exit_code_of(const std::exception& error) noexcept;

}  // namespace lockstep
