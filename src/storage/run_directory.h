// The directory of a run and its lock: who holds it is the only one who writes there. Torch-free.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <lockstep/base/file_system.h>

#include "storage/run_record.h"

namespace lockstep {

/// The lock of a run directory, if it exists and nobody holds it; else, or where it cannot be locked, nullptr.
std::unique_ptr<FileLock> try_lock_run(FileSystem& fs, const std::filesystem::path& directory) noexcept;

class RunDirectory {
 public:
  /// Creates the directory where it is missing, and locks it before anything else in it is touched. An attempt of the
  /// same `launch` that has not ended yet is waited for, for some seconds. Throws: CheckpointError (exit 65) naming the
  /// process that holds it, IoError.
  RunDirectory(FileSystem& fs, const std::filesystem::path& directory, const LaunchName& launch);

  RunFound found() const;
  /// Renames the directory to the first of <directory>.1, .2, ... that is free, and begins an empty one, which is
  /// locked when this returns. Returns the new name of the old one. Throws: ConfigError where the working directory is
  /// inside.
  std::filesystem::path set_aside();
  void write(const RunRecord& record);

 private:
  void lock(const LaunchName* patient_with);
  bool take(std::string& owner);
  std::string json() const;

  FileSystem& fs_;
  std::filesystem::path directory_;  // absolute, without links: it is renamed, not a link to it
  std::unique_ptr<FileLock> lock_{};
};

}  // namespace lockstep
