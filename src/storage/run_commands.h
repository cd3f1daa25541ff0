// Commands for a running training: empty files in the directory `commands` of its run, one per command. Torch-free.
#pragma once

#include <array>
#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/base/file_system.h>

namespace lockstep {

/// Every training has these; a program can add its own.
inline constexpr std::array<std::string_view, 4> kRunCommands{"stop", "save", "validate", "report"};

/// The file that asks the run in this directory for a command. The run removes it when it takes the command.
std::filesystem::path command_file(const std::filesystem::path& run, std::string_view command);

/// All commands that the last training in this directory takes.
std::vector<std::string> commands_of_run(FileSystem& fs, const std::filesystem::path& run);

/// Removes the commands that an earlier launch has not taken. Call it where the lock of the run has just been taken:
/// later ones are for the training that follows.
void drop_commands(FileSystem& fs, const std::filesystem::path& run);

/// What the main rank was asked to do.
struct CommandsTaken {
  bool stop = false;
  bool save = false;
  bool validate = false;
  bool report = false;
  std::vector<std::string> own{};  ///< those of the program
};

class RunCommands {
 public:
  /// Notes the commands of the program for commands_of_run(). `run`: empty: there are no commands.
  RunCommands(FileSystem& fs, std::filesystem::path run, std::vector<std::string> own);

  /// Looks at most once per second.
  CommandsTaken take();

 private:
  using Clock = std::chrono::steady_clock;

  bool take(std::string_view command);
  void note_own();

  FileSystem& fs_;
  std::filesystem::path run_;
  std::vector<std::string> own_;
  Clock::time_point looked_ = Clock::now() - std::chrono::seconds(1);  // the first take() looks
};

}  // namespace lockstep
