#include "cli/verify_command.h"

#include <cstdint>
#include <filesystem>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/storage/checkpoint_dir.h>

#include "base/text.h"
#include "storage/names.h"

namespace lockstep {
namespace {

using Path = std::filesystem::path;

constexpr std::string_view kUsage =
    "usage: lockstep verify DIR\n\n"
    "DIR is a run's directory, its directory of checkpoints, or one checkpoint (step-0000000500). Reads every byte, "
    "says\n"
    "of each checkpoint whether it is valid or where it is damaged, and which one a run would resume from. Nothing is\n"
    "changed.\n\n"
    "exit code: 0 all valid, 2 usage, 65 one is damaged or none is valid\n";

/// What DIR means.
struct Target {
  Path directory{};                    // of checkpoints
  std::optional<std::int64_t> step{};  // only this one
};

Target find_target(const std::string& text) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(text, ignored)) {
    throw ConfigError(fmt::format("{}: found no such directory", text),
                      "give a run's directory, its checkpoints, or one checkpoint; see lockstep verify --help");
  }
  const Path path = std::filesystem::absolute(Path(text) / ".").parent_path();  // also with a slash at the end
  if (const auto name = parse_directory_name(path.filename().string())) {
    if (name->kind != DirectoryKind::committed) {
      throw ConfigError(fmt::format("{}: found an incomplete checkpoint, expected a committed one", text),
                        fmt::format("lockstep verify {}", path.parent_path().string()));
    }
    return {.directory = path.parent_path(), .step = name->step};
  }
  const Path checkpoints = path / "checkpoints";
  return {.directory = std::filesystem::is_directory(checkpoints, ignored) ? checkpoints : path};
}

bool verify_step(const CheckpointDir& directory, std::int64_t step) {
  const std::string name = directory.path(step).filename().string();
  try {
    const Manifest manifest = directory.verify(step);
    const auto bytes = std::accumulate(manifest.files.begin(), manifest.files.end(), std::int64_t{0},
                                       [](std::int64_t sum, const Manifest::File& file) { return sum + file.size; });
    fmt::print("{}: valid, {} in {} files, run {}, restart {}\n", name, human_bytes(bytes), manifest.files.size(),
               printable(manifest.run_id), manifest.restart);
    return true;
  } catch (const CheckpointError& error) {
    fmt::print("{}: damaged: {}\n", name, printable(error.what()));
    return false;
  }
}

void list_left_overs(FileSystem& fs, const Path& directory, const CheckpointDir& checkpoints) {
  for (const std::string& name : fs.list(directory)) {
    const auto parsed = parse_directory_name(name);
    if (parsed && parsed->kind != DirectoryKind::committed && checkpoints.path(parsed->step).filename() != name) {
      fmt::print("{}: incomplete: being written, or left by a crash and removed at the next start\n", name);
    }
  }
}

}  // namespace

int verify_command(std::span<const std::string> args) {
  if (args.size() == 1 && (args[0] == "--help" || args[0] == "-h")) {
    fmt::print("{}", kUsage);
    return 0;
  }
  if (args.size() != 1) {
    throw ConfigError(fmt::format("verify: found {} arguments, expected 1", args.size()),
                      "lockstep verify DIR; see lockstep verify --help");
  }
  FileSystem& fs = real_file_system();
  const Target target = find_target(args[0]);
  const CheckpointDir checkpoints(fs, target.directory);
  std::optional<std::int64_t> newest;
  bool damaged = false;
  for (const std::int64_t step : target.step ? std::vector{*target.step} : checkpoints.steps()) {
    if (verify_step(checkpoints, step)) {
      newest = step;
    } else {
      damaged = true;
    }
  }
  if (!target.step) {
    list_left_overs(fs, target.directory, checkpoints);
    fmt::print("{}\n", newest ? fmt::format("a run resumes from step {}", *newest)
                              : fmt::format("no valid checkpoint in {}", target.directory.string()));
  }
  return newest && !damaged ? 0 : static_cast<int>(ExitCode::bad_data);
}

}  // namespace lockstep
