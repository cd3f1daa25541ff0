#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/storage/checkpoint_dir.h>

#include "base/mapped.h"
#include "base/option_check.h"
#include "base/paths.h"
#include "base/text.h"
#include "storage/checkpoint_files.h"
#include "storage/commit.h"
#include "storage/manifest.h"
#include "storage/names.h"
#include "storage/steps_to_delete.h"

namespace lockstep {
namespace {

using Path = std::filesystem::path;

// Creates `directory` and its missing parents, and makes each durable in its parent.
void create_durable_directories(FileSystem& fs, const Path& directory) {
  const Path parent = directory_of(directory);
  if (!fs.exists(parent)) {
    create_durable_directories(fs, parent);
  }
  fs.create_directories(directory);
  fs.sync_directory(parent);
}

// The directory of each step. A checkpoint that was moved aside is valid until its replacement is in place.
std::map<std::int64_t, std::string> committed_directories(FileSystem& fs, const Path& directory) {
  std::map<std::int64_t, std::string> found;
  for (const std::string& name : fs.list(directory)) {
    const auto parsed = parse_directory_name(name);
    if (!parsed) {
      continue;
    }
    if (parsed->kind == DirectoryKind::committed) {
      found.insert_or_assign(parsed->step, name);
    } else if (parsed->kind == DirectoryKind::aside) {
      found.try_emplace(parsed->step, name);
    }
  }
  return found;
}

}  // namespace

std::vector<std::int64_t> steps_to_delete(std::vector<std::int64_t> steps, int keep_last,
                                          std::span<const std::int64_t> keep) {
  OptionCheck("steps_to_delete").expect("keep_last", keep_last, keep_last >= 0, "0 or more").throw_problems();
  std::ranges::sort(steps);
  steps.resize(steps.size() - std::min(steps.size(), static_cast<std::size_t>(keep_last)));
  std::erase_if(steps, [&](std::int64_t step) { return std::ranges::find(keep, step) != keep.end(); });
  return steps;
}

CheckpointDir::CheckpointDir(FileSystem& fs, Path directory, std::string run_id, int restart)
    : fs_(fs), directory_(std::move(directory)), run_id_(std::move(run_id)), restart_(restart) {}

std::unique_ptr<CheckpointWriter> CheckpointDir::begin(std::int64_t step, std::int64_t expected_bytes) {
  OptionCheck("saving a checkpoint").expect("step", step, step >= 0, "0 or more").throw_problems();
  if (steps().empty()) {  // also if an earlier process created it and was killed before it was durable
    create_durable_directories(fs_, directory_);
  }
  if (const std::int64_t free = fs_.free_bytes(directory_); free < expected_bytes) {
    throw IoError(fmt::format("cannot save {}: found {} free in {}, need {}", step_name(step), human_bytes(free),
                              directory_.string(), human_bytes(expected_bytes)),
                  "free space; the newest checkpoints are unchanged", ENOSPC);
  }
  return make_commit_writer(fs_, directory_, Manifest{.step = step, .run_id = run_id_, .restart = restart_},
                            expected_bytes);
}

void CheckpointDir::make_room(std::int64_t bytes, const std::function<std::optional<std::int64_t>()>& saved,
                              std::span<const std::int64_t> keep) {
  auto kept = static_cast<int>(steps().size());
  if (kept <= 2 || fs_.free_bytes(directory_) >= bytes) {
    return;
  }
  if (const auto whole = saved()) {
    while (kept > 2 && fs_.free_bytes(directory_) < bytes) {
      retain(--kept, *whole, keep);
    }
  }
}

std::vector<std::int64_t> CheckpointDir::steps() const {
  return mapped(committed_directories(fs_, directory_), [](const auto& committed) { return committed.first; });
}

Path CheckpointDir::path(std::int64_t step) const {
  Path committed = directory_ / step_name(step);
  if (fs_.exists(committed)) {  // nearly always; a listing for each of many steps is slow
    return committed;
  }
  const auto found = committed_directories(fs_, directory_);
  const auto it = found.find(step);
  return it == found.end() ? committed : directory_ / it->second;
}

Manifest CheckpointDir::verify(std::int64_t step) const { return CheckpointFiles(fs_, path(step), step).verify(); }

Manifest CheckpointDir::manifest(std::int64_t step) const { return CheckpointFiles(fs_, path(step), step).manifest(); }

void CheckpointDir::read(std::int64_t step, const Manifest::File& file, std::span<std::byte> out) const {
  CheckpointFiles(fs_, path(step), step).read(file, out);
}

std::string CheckpointDir::read(std::int64_t step, const std::string& name, std::int64_t max_bytes) const {
  return CheckpointFiles(fs_, path(step), step).read(name, max_bytes);
}

std::vector<std::string> CheckpointDir::remove_incomplete() {
  const auto committed = committed_directories(fs_, directory_);
  std::vector<std::string> removed;
  bool changed = false;
  if (!committed.empty()) {
    fs_.sync_directory(directory_);  // make the new one durable before the old one is deleted
  }
  for (const std::string& name : fs_.list(directory_)) {
    const auto parsed = parse_directory_name(name);
    if (!parsed && is_temporary_link_name(name) && fs_.read_link(directory_ / name)) {
      fs_.remove(directory_ / name);
    }
    if (!parsed || parsed->kind == DirectoryKind::committed) {
      continue;
    }
    changed = true;
    if (parsed->kind == DirectoryKind::aside && committed.at(parsed->step) == name) {
      fs_.rename(directory_ / name, directory_ / step_name(parsed->step));  // its replacement was not completed
    } else {
      fs_.remove_all(directory_ / name);
      removed.push_back(name);
    }
  }
  if (changed) {
    fs_.sync_directory(directory_);
  }
  return removed;
}

std::vector<std::string> CheckpointDir::abandon(std::span<const std::int64_t> steps) {
  std::vector<std::string> names;
  for (const auto& [step, name] : committed_directories(fs_, directory_)) {
    if (std::ranges::find(steps, step) != steps.end()) {
      fs_.rename(directory_ / name, directory_ / names.emplace_back(abandoned_name(step)));
    }
  }
  if (!names.empty()) {
    fs_.sync_directory(directory_);
  }
  return names;
}

void CheckpointDir::retain(int keep_last, std::int64_t saved, std::span<const std::int64_t> keep) {
  remove(drop(keep_last, saved, keep));
}

std::vector<Path> CheckpointDir::drop(int keep_last, std::int64_t saved, std::span<const std::int64_t> keep) {
  OptionCheck("deleting old checkpoints").expect("keep_last", keep_last, keep_last >= 2, "2 or more").throw_problems();
  std::vector<std::int64_t> candidates = steps();
  std::erase_if(candidates, [saved](std::int64_t step) { return step > saved; });
  const std::vector<std::int64_t> doomed = steps_to_delete(std::move(candidates), keep_last, keep);
  if (doomed.empty()) {
    return {};
  }
  // Renamed first, so that an interrupted deletion does not look like a damaged checkpoint.
  std::vector<Path> dropped;
  for (const std::string& name : fs_.list(directory_)) {
    const auto parsed = parse_directory_name(name);
    if (parsed && parsed->kind != DirectoryKind::temporary && std::ranges::binary_search(doomed, parsed->step)) {
      dropped.push_back(directory_ / temporary_name(parsed->step));
      fs_.rename(directory_ / name, dropped.back());
    }
  }
  fs_.sync_directory(directory_);
  for (const std::string& name : fs_.list(directory_)) {
    const std::optional<Path> target = is_link_name(name) ? fs_.read_link(directory_ / name) : std::nullopt;
    if (target && parse_directory_name(target->string()) && !fs_.exists(directory_ / *target)) {
      fs_.remove(directory_ / name);
    }
  }
  return dropped;
}

void CheckpointDir::remove(std::span<const Path> dropped) const {
  for (const Path& path : dropped) {
    fs_.remove_all(path);
  }
}

void CheckpointDir::link(const std::string& name, std::int64_t step) {
  if (!is_link_name(name)) {
    throw CheckpointError(
        fmt::format("link to a checkpoint: the name \"{}\" is not allowed, expected [A-Za-z0-9._=,+-]{{1,128}} "
                    "without a leading dot, and not the name of a checkpoint",
                    printable(name)));
  }
  fs_.replace_link(directory_ / name, step_name(step));
}

}  // namespace lockstep
