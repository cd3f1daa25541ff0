// lockstep/storage/checkpoint_dir.h
//
// A directory of checkpoints, as bytes: layout, manifest, commit, newest valid one, retention. Torch-free.
// docs/checkpoints.md is the disk format and the commit order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <lockstep/base/file_system.h>

namespace [[gnu::visibility("default")]] lockstep {

inline constexpr int kCheckpointFormat = 1;
inline constexpr std::int64_t kChunkBytes = 4 << 20;  ///< one CRC-32C per this many bytes

/// MANIFEST.json of one checkpoint.
struct Manifest {
  struct File {
    std::string name{};
    std::int64_t size = 0;
    std::vector<std::uint32_t> crc32c{};  ///< one per chunk of kChunkBytes
  };
  int format = kCheckpointFormat;
  std::int64_t step = 0;
  std::string run_id{};
  int restart = 0;
  std::vector<File> files{};
};

/// One checkpoint being written: files in a temporary directory, visible only after commit().
class CheckpointWriter {
 public:
  virtual ~CheckpointWriter() = default;  ///< not committed: the temporary directory is removed
  /// Streams one file: `produce` calls the function it is given with the bytes in order. Checksummed, fsynced, closed.
  /// `expected_bytes` (0: unknown; a little less than the file is fine) are reserved on the disk before the first.
  virtual void add(const std::string& name,
                   const std::function<void(const std::function<void(std::span<const std::byte>)>&)>& produce,
                   std::int64_t expected_bytes = 0) = 0;
  /// Manifest, fsync of the directory, rename, fsync of the parent: durable when it returns.
  virtual void commit() = 0;
};

class CheckpointDir {
 public:
  /// `run_id` and `restart` (attempts of the run before this one) go into the manifests of what is written.
  CheckpointDir(FileSystem& fs, std::filesystem::path directory, std::string run_id = {}, int restart = 0);

  /// Begins checkpoint `step`. `expected_bytes` (0: unknown) is checked against the free space first.
  /// Throws: IoError with bytes needed and free. A checkpoint of this step that is already there and valid is replaced
  /// only at commit (moved aside, then removed).
  std::unique_ptr<CheckpointWriter> begin(std::int64_t step, std::int64_t expected_bytes = 0);

  /// While free space is below `bytes`: deletes the oldest, one by one, as retain(2, saved, keep) may. For begin() of a
  /// run that keeps more than two. `saved` is called when something has to go: a step that is known to be whole.
  void make_room(std::int64_t bytes, const std::function<std::optional<std::int64_t>()>& saved,
                 std::span<const std::int64_t> keep = {});

  std::vector<std::int64_t> steps() const;  ///< committed ones, ascending, not verified
  std::filesystem::path path(
      std::int64_t step) const;  ///< where its files are now; where they would be if there is none

  /// Reads every byte, and the headers of safetensors files. Throws: CheckpointError naming file, chunk and offset, or
  /// the format version.
  Manifest verify(std::int64_t step) const;
  /// Newest that verifies. Damaged ones are reported through `on_damage` and left alone.
  std::optional<Manifest> newest_valid(const std::function<void(const std::string& message)>& on_damage) const;
  /// The manifest alone, checked; the files it names are not looked at. Throws: CheckpointError.
  Manifest manifest(std::int64_t step) const;
  std::unique_ptr<RandomAccessFile> open(std::int64_t step, const std::string& name) const;
  /// All bytes of `file`, as the manifest of `step` has it, checked as they are read; out.size() is the file's size.
  /// Throws: CheckpointError naming file, chunk and offset.
  void read(std::int64_t step, const Manifest::File& file, std::span<std::byte> out) const;
  /// A small file of a checkpoint, such as state.json, checked against the manifest; the other files are not looked at.
  /// Throws: CheckpointError, also when it has more than `max_bytes`.
  std::string read(std::int64_t step, const std::string& name, std::int64_t max_bytes = 16 << 20) const;

  /// Removes left-over temporary directories and links and returns the directories' names; puts back a checkpoint whose
  /// replacement never arrived. Call when nobody is writing.
  std::vector<std::string> remove_incomplete();
  /// Renames the checkpoints of `steps` so that nobody reads, replaces or deletes them any more; returns their new
  /// names.
  std::vector<std::string> abandon(std::span<const std::int64_t> steps);
  /// Deletes the oldest so that the newest `keep_last` (2 at least) and those of `keep` remain of the steps up to
  /// `saved`, the one that was committed last. Higher ones are damaged or of an abandoned attempt: they do not count,
  /// and are replaced when the run gets there. Links to what is deleted go, too.
  void retain(int keep_last, std::int64_t saved, std::span<const std::int64_t> keep = {});
  /// For people: `name` ("best", "last", "epoch=3") beside the steps becomes a symbolic link to `step`. Nothing here
  /// reads it. Throws: CheckpointError (a name that is not [A-Za-z0-9._=,+-]{1,128}, or a step's), IoError (also where
  /// the file system has no links).
  void link(const std::string& name, std::int64_t step);

 private:
  FileSystem& fs_;
  std::filesystem::path directory_;
  std::string run_id_;
  int restart_;
};

/// Steps to delete, ascending, so that the newest `keep_last` and those of `keep` remain. Pure.
std::vector<std::int64_t> steps_to_delete(std::vector<std::int64_t> steps, int keep_last,
                                          std::span<const std::int64_t> keep = {});

}  // namespace lockstep
