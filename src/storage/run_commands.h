// Commands for a running training: empty files in the directory `commands` of its run, one per command. Torch-free.
#pragma once

#include <array>
#include <chrono>
#include <filesystem>
#include <string_view>

#include <lockstep/base/file_system.h>

namespace lockstep {

inline constexpr std::array<std::string_view, 4> kRunCommands{"stop", "save", "validate", "report"};

/// The file that asks the run in this directory for a command. The run removes it when it takes the command.
std::filesystem::path command_file(const std::filesystem::path& run, std::string_view command);

/// What the main rank was asked to do.
struct CommandsTaken {
  bool stop = false;
  bool save = false;
  bool validate = false;
  bool report = false;
};

class RunCommands {
 public:
  /// Removes commands that an earlier training has not taken. `run`: empty: there are no commands.
  RunCommands(FileSystem& fs, std::filesystem::path run);

  /// Looks at most once per second.
  CommandsTaken take();

 private:
  using Clock = std::chrono::steady_clock;

  bool take(std::string_view command);

  FileSystem& fs_;
  std::filesystem::path run_;
  Clock::time_point looked_ = Clock::now();
};

}  // namespace lockstep
