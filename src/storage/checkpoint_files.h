// The files of one checkpoint, whatever the name of its directory is. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include <lockstep/base/file_system.h>
#include <lockstep/storage/checkpoint_dir.h>

namespace lockstep {

/// All functions throw CheckpointError if the checkpoint is missing or damaged, and IoError if it cannot be read now
/// (no permission, a stale handle of a network disk, too many open files): it may be intact, so no caller may replace
/// it by an older one.
class CheckpointFiles {
 public:
  CheckpointFiles(FileSystem& fs, std::filesystem::path directory, std::int64_t step)
      : fs_(fs), directory_(std::move(directory)), step_(step) {}

  const std::filesystem::path& directory() const noexcept { return directory_; }
  std::int64_t step() const noexcept { return step_; }

  // As the functions of CheckpointDir with these names.
  Manifest verify() const;
  Manifest manifest() const;
  void read(const Manifest::File& file, std::span<std::byte> out) const;
  std::string read(const std::string& name, std::int64_t max_bytes) const;

 private:
  FileSystem& fs_;
  std::filesystem::path directory_;
  std::int64_t step_;
};

}  // namespace lockstep
