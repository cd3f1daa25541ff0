// An in-memory file system for tests: its disk can fill up, fail or lose power at any operation. Torch-free.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/base/file_system.h>

namespace lockstep {

/// What remains of unsynced writes after a power loss; a correct protocol survives all three cases.
enum class Unsynced {
  lost,          ///< neither data nor directory entries
  entries_kept,  ///< creates, renames and removals reached the disk, file data did not
  all_kept,      ///< everything had reached the disk
};

/// Thrown by the operation during which the power fails, and by all later ones. Not an IoError: no code may handle it.
struct PowerLost {};

/// WritableFile::sync() makes data durable; sync_directory() of the parent makes directory entries durable (create,
/// rename, remove). Every call that changes something is one operation, numbered from 0.
class MemoryFileSystem final : public FileSystem {
 public:
  MemoryFileSystem();
  ~MemoryFileSystem() override;

  int operations() const;
  std::vector<std::string> trace() const;  ///< "rename /a /b" for each operation so far

  /// The operations `operation` to `operation` + `times` - 1 fail with `error`. A failing append writes half of its
  /// bytes. A file whose sync failed never becomes durable, even if a later sync succeeds.
  void fail_at(int operation, int error, int times = 1);
  void lose_power_at(int operation);
  /// The content of the disk after the machine restarts.
  std::unique_ptr<MemoryFileSystem> after_power_loss(Unsynced unsynced = Unsynced::lost) const;
  void set_free_bytes(std::int64_t bytes);
  /// Flips one bit of a file, like a damaged disk.
  void corrupt(const Path& path, std::int64_t offset);

  std::unique_ptr<WritableFile> create(const Path& path) override;
  std::unique_ptr<WritableFile> open_append(const Path& path) override;
  std::unique_ptr<RandomAccessFile> open(const Path& path) override;
  void create_directories(const Path& path) override;
  void sync_directory(const Path& path) override;
  void rename(const Path& from, const Path& to) override;
  void replace(const Path& from, const Path& to) override;
  void replace_link(const Path& link, const Path& target) override;
  std::optional<Path> read_link(const Path& path) override;
  void remove(const Path& path) override;
  void remove_all(const Path& path) override;
  bool exists(const Path& path) override;
  std::vector<std::string> list(const Path& path) override;
  std::int64_t free_bytes(const Path& path) override;
  std::unique_ptr<FileLock> try_lock(const Path& path, const std::string& my_text, std::string& owner) override;

 private:
  struct State;
  class File;
  class Reader;
  class Lock;
  void move(std::string_view verb, const Path& from, const Path& to, bool may_replace);

  std::shared_ptr<State> state_;  // shared with open files
};

}  // namespace lockstep
