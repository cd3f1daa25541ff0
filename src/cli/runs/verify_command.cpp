#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
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
#include "storage/checkpoint_files.h"
#include "storage/manifest.h"
#include "storage/names.h"

namespace lockstep {
namespace {

using Path = std::filesystem::path;

constexpr FlagRow kFlags[] = {{"json", "", "print one JSON object, which docs/checkpoints.md describes"}};

/// The meaning of DIR.
struct Target {
  Path directory{};                      // of checkpoints
  std::optional<CheckpointFiles> one{};  // only this checkpoint
};

Target find_target(FileSystem& fs, const std::string& text) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(text, ignored)) {
    throw ConfigError(
        fmt::format("{}: {}", text, std::filesystem::exists(text, ignored) ? "is a file" : "no such directory"),
        "give a run's directory, its checkpoints, or one checkpoint; see lockstep verify --help");
  }
  const Path path = std::filesystem::canonical(text);  // text may be ".", or a link such as best
  const std::string name = path.filename().string();
  if (const auto step = parse_abandoned_name(name)) {
    return {.directory = path.parent_path(), .one = CheckpointFiles(fs, path, *step)};
  }
  if (const auto parsed = parse_directory_name(name)) {
    if (parsed->kind != DirectoryKind::committed) {
      throw ConfigError(fmt::format("{}: this checkpoint is incomplete", text),
                        fmt::format("lockstep verify {}", path.parent_path().string()));
    }
    return {.directory = path.parent_path(), .one = CheckpointFiles(fs, path, parsed->step)};
  }
  const Path checkpoints = path / kCheckpointsName;
  if (std::filesystem::is_directory(checkpoints, ignored)) {
    return {.directory = checkpoints};
  }
  refuse_folder_of_runs(fs, text);
  return {.directory = path};
}

struct Checked {
  std::int64_t step = 0;
  std::string name{};
  std::optional<Manifest> manifest{};  // of a valid checkpoint
  std::string damage{};
  std::string unreadable{};      // why nobody can tell now whether it is valid
  bool is_weights_only = false;  // no run resumes from it
};

/// True for a checkpoint of checkpoint.weights_only or of lockstep-convert. One of a loop by hand may have no position.
bool is_weights_only(const CheckpointFiles& files, const Manifest& manifest) {
  return std::ranges::find(manifest.files, "optimizer.safetensors", &Manifest::File::name) == manifest.files.end() &&
         !read_state(files).contains(kPositionEpoch);
}

Checked check(const CheckpointFiles& files) {
  Checked checked{.step = files.step(), .name = files.directory().filename().string()};
  try {
    checked.manifest = files.verify();
    checked.is_weights_only = is_weights_only(files, *checked.manifest);
  } catch (const CheckpointError& error) {
    checked.damage = printable(error.what());
  } catch (const IoError& error) {
    checked.unreadable = printable(error.what());
  }
  return checked;
}

std::string state_text(const Checked& checked) {
  if (!checked.unreadable.empty()) {
    return fmt::format("cannot be read: {}", checked.unreadable);
  }
  if (!checked.manifest) {
    return fmt::format("damaged: {}", checked.damage);
  }
  return fmt::format("valid, {} in {} files, run {}, restart {}{}", human_bytes(size_of(*checked.manifest)),
                     checked.manifest->files.size(), printable(checked.manifest->run_id), checked.manifest->restart,
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
  } else if (!checked.unreadable.empty()) {
    json["unreadable"] = checked.unreadable;
  } else {
    json["damage"] = checked.damage;
  }
  return json;
}

Json to_json(const std::vector<Checked>& all) {
  Json list = Json::array();
  for (const Checked& checked : all) {
    list.push_back(to_json(checked));
  }
  return list;
}

std::vector<std::string> left_overs(FileSystem& fs, const Path& directory, const CheckpointDir& checkpoints) {
  std::vector<std::string> names = fs.list(directory);
  std::erase_if(names, [&](const std::string& name) {
    const auto parsed = parse_directory_name(name);
    return !parsed || parsed->kind == DirectoryKind::committed || checkpoints.path(parsed->step).filename() == name;
  });
  return names;
}

/// Takes what was found of one checkpoint, and what kind of checkpoint it is.
using Show = std::function<void(const Checked& checked, const char* kind)>;

std::vector<Checked> check_all(FileSystem& fs, const CheckpointDir& directory, const Show& show) {
  std::vector<Checked> all;
  for (const std::int64_t step : directory.steps()) {
    Checked checked = check({fs, directory.path(step), step});
    if (checked.manifest || fs.exists(directory.path(step))) {  // else the run has deleted it meanwhile
      show(checked, "");
      all.push_back(std::move(checked));
    }
  }
  return all;
}

/// Those that a run went on without. They do not count for the exit code.
std::vector<Checked> check_abandoned(FileSystem& fs, const Path& directory, const Show& show) {
  std::vector<Checked> all;
  for (const std::string& name : fs.list(directory)) {
    if (const auto step = parse_abandoned_name(name)) {
      all.push_back(check({fs, directory / name, *step}));
      show(all.back(), "abandoned, ");
    }
  }
  return all;
}

/// From which checkpoint a run resumes.
std::string outlook(const std::vector<Checked>& all, const Checked* newest, const Path& directory) {
  if (const auto found = std::find_if(all.rbegin(), all.rend(), [](const Checked& c) { return !c.unreadable.empty(); });
      found != all.rend()) {
    const bool comes_first = newest == nullptr || found->step > newest->step;
    return fmt::format("a start {} with exit code 74 until {} can be read", comes_first ? "ends" : "may end",
                       found->name);
  }
  if (newest == nullptr) {
    return fmt::format("no valid checkpoint in {}", printable(directory.string()));
  }
  return newest->is_weights_only ? fmt::format("no run resumes from step {}, which holds only weights", newest->step)
                                 : fmt::format("a run resumes from step {}", newest->step);
}

int verify(const CommandLine& line, const Variables&) {
  const bool json = line.has("json");
  FileSystem& fs = real_file_system();
  const Target target = find_target(fs, line.arguments[0]);
  const CheckpointDir checkpoints(fs, target.directory);
  const Show show = [json](const Checked& checked, const char* kind) {
    if (!json) {
      fmt::print("{}: {}{}\n", checked.name, kind, state_text(checked));
    }
  };
  std::vector<Checked> all;
  std::vector<Checked> abandoned;
  std::vector<std::string> incomplete;
  if (target.one) {
    all.push_back(check(*target.one));
    show(all.back(), "");
  } else {
    all = check_all(fs, checkpoints, show);
    abandoned = check_abandoned(fs, target.directory, show);
    incomplete = left_overs(fs, target.directory, checkpoints);
  }
  const auto last = std::find_if(all.rbegin(), all.rend(), [](const Checked& c) { return c.manifest.has_value(); });
  const Checked* newest = last == all.rend() ? nullptr : &*last;
  if (json) {
    fmt::print("{}\n", dump_json({{"format", 1},
                                  {"directory", target.directory.string()},
                                  {"checkpoints", to_json(all)},
                                  {"abandoned", to_json(abandoned)},
                                  {"incomplete", incomplete},
                                  {"newest_valid", newest == nullptr ? Json() : Json(newest->step)}}));
  } else if (!target.one) {
    for (const std::string& name : incomplete) {
      fmt::print("{}: incomplete: it is being written, or a crash left it and the next start removes it\n",
                 printable(name));
    }
    fmt::print("{}\n", outlook(all, newest, target.directory));
  }
  if (std::ranges::any_of(all, [](const Checked& c) { return !c.damage.empty(); })) {
    return static_cast<int>(ExitCode::bad_data);
  }
  if (std::ranges::any_of(all, [](const Checked& c) { return !c.unreadable.empty(); })) {
    return static_cast<int>(ExitCode::io);
  }
  return newest != nullptr ? 0 : static_cast<int>(ExitCode::bad_data);
}

}  // namespace

const Command kVerifyCommand{
    .name = "verify",
    .arguments = "DIR",
    .summary = "read every byte of a run's checkpoints",
    .description =
        "DIR is a run directory, its directory of checkpoints, or one checkpoint (step-0000000500). Reads every byte "
        "and prints for each checkpoint whether it is valid or where it is damaged, and from which one a run would "
        "resume; also those that a run has abandoned. Changes nothing.",
    .exit_codes = "0 all are valid, 2 usage, 65 one is damaged or none is valid, 74 one cannot be read",
    .flags = kFlags,
    .run = verify};

}  // namespace lockstep
