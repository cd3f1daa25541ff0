#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/storage/checkpoint_dir.h>

#include "base/crc32c.h"
#include "base/text.h"
#include "storage/commit.h"
#include "storage/manifest.h"
#include "storage/names.h"

namespace lockstep {
namespace {

using Path = std::filesystem::path;

// Makes `directory` and what is missing above it, each durable in its parent.
void create_durable_directories(FileSystem& fs, const Path& directory) {
  const Path parent = directory.has_parent_path() ? directory.parent_path() : Path(".");
  if (!fs.exists(parent)) {
    create_durable_directories(fs, parent);
  }
  fs.create_directories(directory);
  fs.sync_directory(parent);
}

// Where the files of each step are. A checkpoint moved aside counts until its replacement is in place.
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

void verify_chunks(const RandomAccessFile& file, const Manifest::File& entry, const std::string& where) {
  if (file.size() != entry.size) {
    throw CheckpointError(fmt::format("{}: found {} bytes, expected {}", where, file.size(), entry.size));
  }
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(entry.size, kChunkBytes)));
  for (std::size_t chunk = 0; chunk < entry.crc32c.size(); ++chunk) {
    const std::int64_t offset = static_cast<std::int64_t>(chunk) * kChunkBytes;
    const auto size = static_cast<std::size_t>(std::min(kChunkBytes, entry.size - offset));
    const std::span<std::byte> bytes = std::span(buffer).first(size);
    file.read(offset, bytes);
    if (const std::uint32_t crc = crc32c(bytes); crc != entry.crc32c[chunk]) {
      throw CheckpointError(fmt::format("{} chunk {} (offset {} MiB): checksum {:08x}, expected {:08x}", where, chunk,
                                        offset >> 20, crc, entry.crc32c[chunk]));
    }
  }
}

// Calls `function`; what the operating system refuses becomes damage of `where`.
template <typename Function>
auto as_damage(const std::string& where, const Function& function) {
  try {
    return function();
  } catch (const IoError& error) {
    throw CheckpointError(where + ": " + error.what(), error.hint());
  }
}

}  // namespace

CheckpointDir::CheckpointDir(FileSystem& fs, Path directory, std::string run_id, int restart)
    : fs_(fs), directory_(std::move(directory)), run_id_(std::move(run_id)), restart_(restart) {}

std::unique_ptr<CheckpointWriter> CheckpointDir::begin(std::int64_t step, std::int64_t expected_bytes) {
  LOCKSTEP_ASSERT(step >= 0, "steps count from 0");
  if (steps().empty()) {  // also when an earlier process made it and was killed before it was durable
    create_durable_directories(fs_, directory_);
  }
  if (const std::int64_t free = fs_.free_bytes(directory_); free < expected_bytes) {
    throw IoError(fmt::format("cannot save {}: found {} free in {}, need {}", step_name(step), human_bytes(free),
                              directory_.string(), human_bytes(expected_bytes)),
                  "free space or lower checkpoint.keep_last; the checkpoints that are there are untouched");
  }
  return make_commit_writer(fs_, directory_, Manifest{.step = step, .run_id = run_id_, .restart = restart_});
}

std::vector<std::int64_t> CheckpointDir::steps() const {
  std::vector<std::int64_t> steps;
  for (const auto& [step, name] : committed_directories(fs_, directory_)) {
    steps.push_back(step);
  }
  return steps;
}

Path CheckpointDir::path(std::int64_t step) const {
  const auto found = committed_directories(fs_, directory_);
  const auto it = found.find(step);
  return directory_ / (it == found.end() ? step_name(step) : it->second);
}

Manifest CheckpointDir::verify(std::int64_t step) const {
  const Path directory = path(step);
  const std::string name = directory.filename().string();
  if (!fs_.exists(directory)) {
    throw CheckpointError(fmt::format("{}: no such checkpoint in {}", name, directory_.string()));
  }
  const auto existing = [&](std::string_view file, const std::string& where) {
    if (!fs_.exists(directory / file)) {
      throw CheckpointError(where + ": missing");
    }
    return directory / file;
  };

  const std::string where = fmt::format("{}/{}", name, kManifestName);
  const std::string text =
      as_damage(where, [&] { return read_file(fs_, existing(kManifestName, where), kMaxManifestBytes); });
  Manifest manifest = parse_manifest(text, where);
  if (manifest.step != step) {
    throw CheckpointError(fmt::format("{}: found step {}, expected {}", where, manifest.step, step));
  }
  for (const Manifest::File& entry : manifest.files) {
    const std::string file = fmt::format("{}/{}", name, entry.name);
    as_damage(file, [&] { verify_chunks(*fs_.open(existing(entry.name, file)), entry, file); });
  }
  return manifest;
}

std::optional<Manifest> CheckpointDir::newest_valid(
    const std::function<void(const std::string& message)>& on_damage) const {
  const std::vector<std::int64_t> ascending = steps();
  for (auto step = ascending.rbegin(); step != ascending.rend(); ++step) {
    try {
      return verify(*step);
    } catch (const CheckpointError& error) {
      if (on_damage) {
        on_damage(error.what());
      }
    }
  }
  return std::nullopt;
}

std::unique_ptr<RandomAccessFile> CheckpointDir::open(std::int64_t step, const std::string& name) const {
  if (!is_file_name(name)) {
    throw CheckpointError(fmt::format("checkpoint file name: found \"{}\", expected [A-Za-z0-9._-]{{1,128}}", name));
  }
  return fs_.open(path(step) / name);
}

std::vector<std::string> CheckpointDir::remove_incomplete() {
  const auto committed = committed_directories(fs_, directory_);
  std::vector<std::string> removed;
  bool changed = false;
  if (!committed.empty()) {
    fs_.sync_directory(directory_);  // what is in place is durable before anything it replaced goes
  }
  for (const std::string& name : fs_.list(directory_)) {
    const auto parsed = parse_directory_name(name);
    if (!parsed || parsed->kind == DirectoryKind::committed) {
      continue;
    }
    changed = true;
    if (parsed->kind == DirectoryKind::aside && committed.at(parsed->step) == name) {
      fs_.rename(directory_ / name, directory_ / step_name(parsed->step));  // its replacement never arrived
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

void CheckpointDir::retain(int keep_last, std::int64_t saved) {
  LOCKSTEP_ASSERT(keep_last >= 2, "one checkpoint is not enough while the next is written");
  std::vector<std::int64_t> candidates = steps();
  std::erase_if(candidates, [saved](std::int64_t step) { return step > saved; });
  const std::vector<std::int64_t> doomed = steps_to_delete(std::move(candidates), keep_last);
  if (doomed.empty()) {
    return;
  }
  // Renamed first: a deletion cut short must not look like a damaged checkpoint.
  std::vector<Path> temporary;
  for (const std::string& name : fs_.list(directory_)) {
    const auto parsed = parse_directory_name(name);
    if (parsed && parsed->kind != DirectoryKind::temporary &&
        std::binary_search(doomed.begin(), doomed.end(), parsed->step)) {
      temporary.push_back(directory_ / temporary_name(parsed->step));
      fs_.rename(directory_ / name, temporary.back());
    }
  }
  fs_.sync_directory(directory_);
  for (const Path& path : temporary) {
    fs_.remove_all(path);
  }
}

}  // namespace lockstep
