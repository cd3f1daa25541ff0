// The directory of a run and its lock: only the process that holds the lock writes there. Torch-free.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>

#include "storage/run_record.h"

namespace lockstep {

/// Takes the lock of an existing run directory; nullptr: there is no directory, another process holds the lock, or
/// locking failed.
std::unique_ptr<FileLock> try_lock_run(FileSystem& fs, const std::filesystem::path& directory) noexcept;

/// True if a process holds the lock of the directory or of its checkpoints. Creates, writes and locks nothing.
bool is_run_in_use(const std::filesystem::path& directory) noexcept;
/// True if only its checkpoints are locked: by a CheckpointStore of a hand-written loop, without a Trainer. With
/// --fresh or memory.halve_batch run() locks the directory for such a loop, too.
bool is_run_of_own_loop(const std::filesystem::path& directory) noexcept;

/// The file in which a run remembers a micro-batch that did not fit; "": there is none, or it cannot be read.
std::string kept_batch_limit(FileSystem& fs, const std::filesystem::path& directory) noexcept;
/// Warns if that cannot be done.
void drop_batch_limit(FileSystem& fs, const std::filesystem::path& directory) noexcept;

class RunDirectory {
 public:
  /// Creates the directory if it is missing, and locks it before anything else in it is touched. Waits some seconds for
  /// an attempt of the same `launch` that has not ended yet. Throws: CheckpointError (exit 65) naming the process that
  /// holds the lock, IoError.
  RunDirectory(FileSystem& fs, const std::filesystem::path& directory, const LaunchName& launch);

  RunFound found() const;
  /// Renames the directory to the first free name of <directory>.1, .2, ..., and creates an empty one, which is locked
  /// on return. Returns the new name of the old directory. Throws: ConfigError if the working directory is inside.
  std::filesystem::path set_aside();
  void write(const RunRecord& record);

 private:
  void lock(const LaunchName* patient_with);
  bool take(std::string& owner, std::optional<IoError>& missing);
  std::string json() const;

  FileSystem& fs_;
  std::filesystem::path directory_;  // absolute, without links: the directory itself is renamed, not a link
  std::unique_ptr<FileLock> lock_{};
};

}  // namespace lockstep
