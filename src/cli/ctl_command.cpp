#include "cli/ctl_command.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "storage/run_commands.h"
#include "storage/run_directory.h"
#include "storage/run_record.h"

namespace lockstep {
namespace {

constexpr std::string_view kUsage =
    "usage: lockstep ctl RUN stop|save|validate|report\n\n"
    "Asks the training that runs in the directory RUN for something, at the end of its current step:\n"
    "  stop       save and end; the same command continues the run later\n"
    "  save       write a checkpoint\n"
    "  validate   validate now, if the training has validation data\n"
    "  report     report the metrics since the last report\n\n"
    "It waits 10 seconds for the training to take the command. A program can create the file RUN/commands/stop "
    "itself,\n"
    "for example on another machine.\n\n"
    "exit code: 0 taken, 1 not taken yet: a long step or validation runs, 2 usage, 65 no training runs in RUN\n";

bool is_taken(FileSystem& fs, const std::filesystem::path& file) {
  constexpr std::chrono::seconds kPatience{10};
  constexpr std::chrono::milliseconds kPause{50};
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (fs.exists(file)) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

}  // namespace

int ctl_command(std::span<const std::string> args) {
  if (args.size() == 1 && (args[0] == "--help" || args[0] == "-h")) {
    fmt::print("{}", kUsage);
    return 0;
  }
  if (args.size() != 2) {
    throw ConfigError(fmt::format("ctl: found {} arguments, expected 2", args.size()),
                      "lockstep ctl RUN stop|save|validate|report; see lockstep ctl --help");
  }
  const std::filesystem::path run = args[0];
  const std::string& command = args[1];
  if (std::ranges::find(kRunCommands, command) == kRunCommands.end()) {
    throw ConfigError(fmt::format("ctl: {}: unknown command", printable(command)),
                      "expected stop, save, validate or report");
  }
  FileSystem& fs = real_file_system();
  if (!fs.exists(run / kRunRecordName)) {
    throw ConfigError(fmt::format("{} contains no run", run.string()), "give the run directory, such as runs/first");
  }
  if (!is_run_in_use(run)) {
    throw CheckpointError(fmt::format("no training runs in {} now", run.string()),
                          "start it with the command of the run");
  }
  const std::filesystem::path file = command_file(run, command);
  fs.create_directories(file.parent_path());
  write_file(fs, file, "");
  const bool taken = is_taken(fs, file);
  fmt::print("{}: {}\n", command, taken ? "taken" : "not taken yet; the training takes it at the end of its step");
  return taken ? 0 : 1;
}

}  // namespace lockstep
