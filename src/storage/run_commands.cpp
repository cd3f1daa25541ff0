#include "storage/run_commands.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

namespace lockstep {

std::filesystem::path command_file(const std::filesystem::path& run, std::string_view command) {
  return run / "commands" / command;
}

RunCommands::RunCommands(FileSystem& fs, std::filesystem::path run) : fs_(fs), run_(std::move(run)) {
  if (!run_.empty()) {
    for (const std::string_view command : kRunCommands) {
      take(command);
    }
  }
}

CommandsTaken RunCommands::take() {
  const auto now = Clock::now();
  if (run_.empty() || now - looked_ < std::chrono::seconds(1)) {
    return {};
  }
  looked_ = now;
  return {.stop = take("stop"), .save = take("save"), .validate = take("validate"), .report = take("report")};
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
