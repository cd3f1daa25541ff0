#include "storage/run_commands.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/text.h"

namespace lockstep {

std::filesystem::path command_file(const std::filesystem::path& run, std::string_view command) {
  return run / "commands" / command;
}

namespace {

// No command, as it has a dot.
std::filesystem::path own_commands_file(const std::filesystem::path& run) { return run / "commands" / ".own"; }

}  // namespace

std::vector<std::string> commands_of_run(FileSystem& fs, const std::filesystem::path& run) {
  std::vector<std::string> commands(kRunCommands.begin(), kRunCommands.end());
  if (const std::filesystem::path file = own_commands_file(run); fs.exists(file)) {
    for (const std::string& word : split(read_file(fs, file), '\n')) {
      if (!word.empty()) {
        commands.push_back(word);
      }
    }
  }
  return commands;
}

void drop_commands(FileSystem& fs, const std::filesystem::path& run) {
  try {
    for (const std::string& name : fs.list(run / "commands")) {
      if (name.find('.') == std::string::npos) {  // words have no dot, temporary files have one
        fs.remove(command_file(run, name));
      }
    }
  } catch (const IoError& error) {
    log_warning(fmt::format("cannot remove a command for an earlier training: {}", error.what()));
  }
}

RunCommands::RunCommands(FileSystem& fs, std::filesystem::path run, std::vector<std::string> own)
    : fs_(fs), run_(std::move(run)), own_(std::move(own)) {
  if (!run_.empty()) {
    note_own();
  }
}

void RunCommands::note_own() {
  const std::filesystem::path file = own_commands_file(run_);
  try {
    if (!own_.empty()) {
      fs_.create_directories(file.parent_path());
      write_file(fs_, file, join(own_, "\n"));
    } else if (fs_.exists(file)) {
      fs_.remove(file);
    }
  } catch (const IoError& error) {
    log_warning(fmt::format("lockstep ctl does not know the commands of the program: {}", error.what()));
  }
}

CommandsTaken RunCommands::take() {
  if (run_.empty()) {
    return {};
  }
  const auto now = Clock::now();
  if (now - looked_ < std::chrono::seconds(1)) {
    return {};
  }
  looked_ = now;
  CommandsTaken taken{
      .stop = take("stop"), .save = take("save"), .validate = take("validate"), .report = take("report")};
  std::ranges::copy_if(own_, std::back_inserter(taken.own), [this](const std::string& word) { return take(word); });
  return taken;
}

// A file that cannot be removed would ask again and again.
bool RunCommands::take(std::string_view command) {
  const std::filesystem::path file = command_file(run_, command);
  try {
    if (!fs_.exists(file)) {
      return false;
    }
    fs_.remove(file);
    return true;
  } catch (const IoError& error) {
    log_warning(fmt::format("the command {} is ignored: {}", command, error.what()));
    return false;
  }
}

}  // namespace lockstep
