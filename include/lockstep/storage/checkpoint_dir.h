// lockstep/storage/checkpoint_dir.h
//
// A directory of checkpoints as bytes: layout, manifest, commit, newest valid checkpoint, retention. Torch-free.
// docs/checkpoint_format.md describes the disk format and the commit order.
#pragma once

#include <cstddef>
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

/// Version of the layout of a checkpoint; others are refused.
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

/// One checkpoint that is being written: its files are in a temporary directory and become visible with commit().
class CheckpointWriter {
 public:
  virtual ~CheckpointWriter() = default;  ///< without commit(): removes the temporary directory
  /// Streams one file: `produce` passes its bytes in order to the function that it is given. The file is checksummed,
  /// synced and closed. Before the first byte, `expected_bytes` are reserved on the disk (0: unknown; it may be
  /// slightly less than the file).
  virtual void add(const std::string& name,
                   const std::function<void(const std::function<void(std::span<const std::byte>)>&)>& produce,
                   std::int64_t expected_bytes = 0) = 0;
  /// Writes the manifest, syncs the directory, renames it and syncs the parent: the checkpoint is durable on return.
  virtual void commit() = 0;
};

/// A directory of checkpoints, one per saved step.
class CheckpointDir {
 public:
  /// `run_id` and `restart` (earlier attempts of the run) go into the manifests.
  CheckpointDir(FileSystem& fs, std::filesystem::path directory, std::string run_id = {}, int restart = 0);

  /// Starts checkpoint `step`. First compares `expected_bytes` (0: unknown) with the free space. Throws: IoError with
  /// the bytes needed and free. A valid checkpoint of the same step is replaced only at commit (renamed, then removed).
  std::unique_ptr<CheckpointWriter> begin(std::int64_t step, std::int64_t expected_bytes = 0);

  /// While free space is below `bytes`: deletes the oldest checkpoints one by one, within the rules of retain(2, saved,
  /// keep). Call it before begin() in a run that keeps more than two. `saved` is called before the first deletion: the
  /// step of a checkpoint that is known to be undamaged.
  void make_room(std::int64_t bytes, const std::function<std::optional<std::int64_t>()>& saved,
                 std::span<const std::int64_t> keep = {});

  std::vector<std::int64_t> steps() const;              ///< committed ones, ascending, not verified
  std::filesystem::path path(std::int64_t step) const;  ///< directory of its files; the future one if there is none yet

  /// Reads every byte, and the headers of safetensors files. Throws: CheckpointError naming file, chunk and offset, or
  /// the format version; as all functions that read here, IoError if a file cannot be read now.
  Manifest verify(std::int64_t step) const;
  /// Reads and checks the manifest alone, not the files that it lists. Throws: CheckpointError.
  Manifest manifest(std::int64_t step) const;
  /// Reads all bytes of `file`, an entry of the manifest of `step`, and verifies them; out.size() is the size of the
  /// file. Throws: CheckpointError naming file, chunk and offset.
  void read(std::int64_t step, const Manifest::File& file, std::span<std::byte> out) const;
  /// Reads a small file of a checkpoint, such as state.json, and verifies it; does not look at the other files. Throws:
  /// CheckpointError, also if it is larger than `max_bytes`.
  std::string read(std::int64_t step, const std::string& name, std::int64_t max_bytes = 16 << 20) const;

  /// Removes left-over temporary directories and links, and returns the names of the directories; restores a checkpoint
  /// whose replacement was not completed. Call it while no process writes.
  std::vector<std::string> remove_incomplete();
  /// Renames the checkpoints of `steps` so that no run uses, replaces or deletes them unless a user names one; returns
  /// their new names.
  std::vector<std::string> abandon(std::span<const std::int64_t> steps);
  /// Deletes the oldest checkpoints up to `saved`, the step of the last commit. Keeps the newest `keep_last` (at least
  /// 2) and those in `keep`. Steps after `saved` are damaged or from an abandoned attempt: they do not count, and the
  /// run replaces them when it reaches their steps. Links to deleted checkpoints are deleted too.
  void retain(int keep_last, std::int64_t saved, std::span<const std::int64_t> keep = {});
  /// The first part of retain(), which is quick: the old checkpoints are gone for every reader, also after a crash.
  /// Their space is not: the caller passes the returned directories to remove(), at any time and in any thread.
  [[nodiscard]] std::vector<std::filesystem::path> drop(int keep_last, std::int64_t saved,
                                                        std::span<const std::int64_t> keep = {});
  /// The second part of retain(). What is not removed is left for remove_incomplete().
  void remove(std::span<const std::filesystem::path> dropped) const;
  /// For people, who may name it for --resume or load_checkpoint: makes `name` ("best", "last", "epoch=3") in the
  /// directory a symbolic link to `step`. The library itself never looks for it. Throws: CheckpointError (a name that
  /// is not [A-Za-z0-9._=,+-]{1,128}, or the name of a step), IoError (also if the file system does not support links).
  void link(const std::string& name, std::int64_t step);

 private:
  FileSystem& fs_;
  std::filesystem::path directory_;
  std::string run_id_;
  int restart_;
};

}  // namespace lockstep
