#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/runs/run_data.h"
#include "storage/run_commands.h"
#include "storage/run_directory.h"

namespace lockstep {
namespace {

/// Whether the launcher was to start the ranks again after a failure. Nobody trains until it has. It may have been
/// ended meanwhile, of which there is no event.
bool awaits_restart(FileSystem& fs, const std::filesystem::path& run) {
  const std::vector<RunEvent> events = read_run(fs, run).events;
  if (events.empty()) {
    return false;
  }
  const auto restart = events.back().fields.find("restart");
  return events.back().name == "restart" ||
         (events.back().name == "failure" && restart != events.back().fields.end() && *restart == true);
}

CheckpointError no_training(FileSystem& fs, const std::filesystem::path& run) {
  const std::string what = fmt::format("no training runs in {} now", printable(run.string()));
  if (awaits_restart(fs, run)) {
    return CheckpointError(
        what + "; its last attempt failed, and another one was to follow",
        "if its launcher still runs, wait for the restart, or end the launcher with Ctrl-C or SIGTERM");
  }
  return CheckpointError(what, "start it with the command of the run");
}

/// Throws: CheckpointError if the training ends without taking the command. The command is removed then.
bool is_taken(FileSystem& fs, const std::filesystem::path& run, const std::filesystem::path& file) {
  constexpr std::chrono::seconds kPatience{10};
  constexpr std::chrono::milliseconds kPause{50};
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (fs.exists(file)) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    if (!is_run_in_use(run) && fs.exists(file)) {
      fs.remove(file);
      throw no_training(fs, run);
    }
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

int ctl(const CommandLine& line, const Variables&) {
  const std::filesystem::path run = line.arguments[0];
  const std::string& command = line.arguments[1];
  FileSystem& fs = real_file_system();
  require_run(fs, run);
  if (!is_run_in_use(run)) {
    throw no_training(fs, run);
  }
  if (is_run_of_own_loop(run)) {
    throw CheckpointError(fmt::format("the program that runs in {} has a loop of its own, which takes no commands",
                                      printable(run.string())),
                          "only a Trainer takes them; end this program with SIGTERM");
  }
  if (const std::vector<std::string> known = commands_of_run(fs, run);
      std::ranges::find(known, command) == known.end()) {
    throw ConfigError(fmt::format("ctl: found {}, expected {}", printable(command), join_or(known)),
                      did_you_mean(command, known, "", "a program adds commands with Trainer::on_command"));
  }
  const std::filesystem::path file = command_file(run, command);
  fs.create_directories(file.parent_path());
  write_file(fs, file, "");
  const bool taken = is_taken(fs, run, file);
  fmt::print("{}: {}\n", command, taken ? "taken" : "not taken yet; a Trainer takes it at the end of its step");
  return taken ? 0 : 1;
}

}  // namespace

const Command kCtlCommand{
    .name = "ctl",
    .arguments = "RUN stop|save|validate|report|WORD",
    .summary = "stop, save, validate or report a running training",
    .description =
        "Asks the training that runs in the directory RUN for something, at the end of its current step:\n"
        "  stop       save and end; the same command continues the run later\n"
        "  save       write a checkpoint\n"
        "  validate   validate now, if the training has validation data\n"
        "  report     report the metrics since the last report\n"
        "  WORD       a command of the program (Trainer::on_command), such as sample\n"
        "It waits 10 seconds for the training to take the command. A program can create the file RUN/commands/stop "
        "itself, for example on another machine.",
    .exit_codes =
        "0 taken, 1 not taken yet: a long step or validation runs, 2 usage, no run in RUN, or no such command of its "
        "training, 65 no training runs in RUN, it has a loop of its own, or it ended without taking the command",
    .run = ctl};

}  // namespace lockstep
