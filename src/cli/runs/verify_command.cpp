#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/storage/checkpoint_dir.h>

#include "base/json.h"
#include "base/run_files.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/runs/run_data.h"
#include "storage/manifest.h"
#include "storage/names.h"

namespace lockstep {
namespace {

using Path = std::filesystem::path;

constexpr FlagRow kFlags[] = {{"json", "", "print one JSON object, which docs/checkpoints.md describes"}};

/// The meaning of DIR.
struct Target {
  Path directory{};                    // of checkpoints
  std::optional<std::int64_t> step{};  // only this checkpoint
};

Target find_target(const std::string& text) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(text, ignored)) {
    throw ConfigError(fmt::format("{}: no such directory", text),
                      "give a run's directory, its checkpoints, or one checkpoint; see lockstep verify --help");
  }
  const Path path = std::filesystem::canonical(text);  // text may be ".", or a link such as best
  if (const auto name = parse_directory_name(path.filename().string())) {
    if (name->kind != DirectoryKind::committed) {
      throw ConfigError(fmt::format("{}: this checkpoint is incomplete", text),
                        fmt::format("lockstep verify {}", path.parent_path().string()));
    }
    return {.directory = path.parent_path(), .step = name->step};
  }
  const Path checkpoints = path / kCheckpointsName;
  if (std::filesystem::is_directory(checkpoints, ignored)) {
    return {.directory = checkpoints};
  }
  refuse_folder_of_runs(real_file_system(), text);
  return {.directory = path};
}

struct Checked {
  std::int64_t step = 0;
  std::string name{};
  std::optional<Manifest> manifest{};  // of a valid checkpoint
  std::string damage{};
  bool is_weights_only = false;  // no run resumes from it
};

/// True for a checkpoint of checkpoint.weights_only or of lockstep-convert. One of a loop by hand may have no position.
bool is_weights_only(const CheckpointDir& directory, const Manifest& manifest) {
  return std::ranges::find(manifest.files, "optimizer.safetensors", &Manifest::File::name) == manifest.files.end() &&
         !read_state(directory, manifest).contains(kPositionEpoch);
}

Checked check(const CheckpointDir& directory, std::int64_t step) {
  Checked checked{.step = step, .name = directory.path(step).filename().string()};
  try {
    checked.manifest = directory.verify(step);
    checked.is_weights_only = is_weights_only(directory, *checked.manifest);
  } catch (const CheckpointError& error) {
    checked.damage = printable(error.what());
  }
  return checked;
}

std::string to_text(const Checked& checked) {
  if (!checked.manifest) {
    return fmt::format("{}: damaged: {}", checked.name, checked.damage);
  }
  return fmt::format("{}: valid, {} in {} files, run {}, restart {}{}", checked.name,
                     human_bytes(size_of(*checked.manifest)), checked.manifest->files.size(),
                     printable(checked.manifest->run_id), checked.manifest->restart,
                     checked.is_weights_only ? ", only weights" : "");
}

Json to_json(const Checked& checked) {
  Json json = {{"name", checked.name}, {"step", checked.step}, {"valid", checked.manifest.has_value()}};
  if (checked.manifest) {
    json["bytes"] = size_of(*checked.manifest);
    json["files"] = checked.manifest->files.size();
    json["run_id"] = printable(checked.manifest->run_id);
    json["restart"] = checked.manifest->restart;
    if (checked.is_weights_only) {
      json["weights_only"] = true;
    }
  } else {
    json["damage"] = checked.damage;
  }
  return json;
}

std::vector<std::string> left_overs(FileSystem& fs, const Path& directory, const CheckpointDir& checkpoints) {
  std::vector<std::string> names = fs.list(directory);
  std::erase_if(names, [&](const std::string& name) {
    const auto parsed = parse_directory_name(name);
    return !parsed || parsed->kind == DirectoryKind::committed || checkpoints.path(parsed->step).filename() == name;
  });
  return names;
}

int verify(const CommandLine& line, const Variables&) {
  const bool json = line.has("json");
  FileSystem& fs = real_file_system();
  const Target target = find_target(line.arguments[0]);
  const CheckpointDir checkpoints(fs, target.directory);
  std::optional<std::int64_t> newest;
  bool newest_is_weights_only = false;
  bool damaged = false;
  Json all = Json::array();
  for (const std::int64_t step : target.step ? std::vector{*target.step} : checkpoints.steps()) {
    const Checked checked = check(checkpoints, step);
    if (!checked.manifest && !target.step && !fs.exists(checkpoints.path(step))) {
      continue;  // the run has deleted it meanwhile
    }
    if (checked.manifest) {
      newest = step;
      newest_is_weights_only = checked.is_weights_only;
    } else {
      damaged = true;
    }
    if (json) {
      all.push_back(to_json(checked));
    } else {
      fmt::print("{}\n", to_text(checked));
    }
  }
  const auto incomplete = target.step ? std::vector<std::string>{} : left_overs(fs, target.directory, checkpoints);
  if (json) {
    fmt::print("{}\n", dump_json({{"format", 1},
                                  {"directory", target.directory.string()},
                                  {"checkpoints", std::move(all)},
                                  {"incomplete", incomplete},
                                  {"newest_valid", or_null(newest)}}));
  } else if (!target.step) {
    for (const std::string& name : incomplete) {
      fmt::print("{}: incomplete: it is being written, or a crash left it and the next start removes it\n",
                 printable(name));
    }
    fmt::print("{}\n", !newest ? fmt::format("no valid checkpoint in {}", printable(target.directory.string()))
                       : newest_is_weights_only
                           ? fmt::format("no run resumes from step {}, which holds only weights", *newest)
                           : fmt::format("a run resumes from step {}", *newest));
  }
  return newest && !damaged ? 0 : static_cast<int>(ExitCode::bad_data);
}

}  // namespace

const Command kVerifyCommand{
    .name = "verify",
    .arguments = "DIR",
    .summary = "read every byte of a run's checkpoints",
    .description =
        "DIR is a run directory, its directory of checkpoints, or one checkpoint (step-0000000500). Reads every byte "
        "and prints for each checkpoint whether it is valid or where it is damaged, and from which one a run would "
        "resume. Changes nothing.",
    .exit_codes = "0 all are valid, 2 usage, 65 one is damaged or none is valid",
    .flags = kFlags,
    .run = verify};

}  // namespace lockstep
