// lockstep/base/file_system.h
//
// The library writes all files through this interface, so that tests can simulate a power loss or a full disk.
// Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace [[gnu::visibility("default")]] lockstep {

/// A file that is being written. Nothing is durable before sync().
class WritableFile {
 public:
  virtual ~WritableFile() = default;  ///< closes without syncing; never throws
  /// Call before the first append: reserves `bytes` on the disk if the file system supports it. A large file is then
  /// written past the page cache. Throws: IoError if space is unavailable.
  virtual void reserve(std::int64_t bytes) = 0;
  virtual void append(std::span<const std::byte> bytes) = 0;  ///< a later call may report the error
  virtual void truncate(std::int64_t bytes) = 0;  ///< keeps the first `bytes`; only for files from open_append()
  virtual void sync() = 0;                        ///< fsync. After a failure discard the file; do not sync it again.
  virtual void close() = 0;                       ///< throws the error of close(2)
  virtual bool is_in_place() const = 0;           ///< false after its path was removed, or has become another file
};

/// A file that is being read. Opens regular files only and follows no symbolic links.
class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  virtual std::int64_t size() const = 0;
  /// Reads exactly `out.size()` bytes at `offset`. Throws: IoError if the file is shorter.
  virtual void read(std::int64_t offset, std::span<std::byte> out) const = 0;
};

/// A lock that is released when its owner ends.
class FileLock {
 public:
  virtual ~FileLock() = default;
  /// False after the file of the lock was renamed or removed, for example with its directory: another process can then
  /// take the lock at its path. Throws: IoError.
  virtual bool is_in_place() const = 0;
  /// Gives the file the time of now, so that a program that removes old files leaves it. Ignores errors.
  virtual void touch() noexcept = 0;
};

/// All operations throw IoError with the path and the errno text. The umask decides who may read new files.
/// Thread-safe.
class FileSystem {
 public:
  using Path = std::filesystem::path;
  virtual ~FileSystem() = default;
  virtual std::unique_ptr<WritableFile> create(const Path& path) = 0;       ///< new file; fails if it exists
  virtual std::unique_ptr<WritableFile> open_append(const Path& path) = 0;  ///< created if missing
  virtual std::unique_ptr<RandomAccessFile> open(const Path& path) = 0;
  virtual void create_directories(const Path& path) = 0;
  virtual void sync_directory(const Path& path) = 0;
  virtual void rename(const Path& from, const Path& to) = 0;   ///< fails if `to` exists
  virtual void replace(const Path& from, const Path& to) = 0;  ///< atomically replaces a file
  /// Atomically makes `link` a symbolic link to `target`. Fails if `link` exists and is not a link.
  virtual void replace_link(const Path& link, const Path& target) = 0;
  virtual std::optional<Path> read_link(const Path& path) = 0;  ///< nullopt: `path` is not a link
  virtual void remove(const Path& path) = 0;      ///< a file or a link, not a directory; no error if missing
  virtual void remove_all(const Path& path) = 0;  ///< no error if missing; of a link it removes the link itself
  virtual bool exists(const Path& path) = 0;
  virtual std::vector<std::string> list(const Path& path) = 0;  ///< names, sorted; {} if missing
  virtual std::int64_t free_bytes(const Path& path) = 0;
  /// Takes an exclusive lock on `path` (created if missing). Returns nullptr if another process holds the lock; `owner`
  /// then gets the text of the lock file.
  [[nodiscard]] virtual std::unique_ptr<FileLock> try_lock(const Path& path, const std::string& my_text,
                                                           std::string& owner) = 0;
};

/// The file system of the operating system. Stateless; one object per process.
FileSystem& real_file_system() noexcept;

/// Whole files. `write_file` is atomic and durable: it writes the temporary file <name>.tmp.<16 hexadecimal digits>,
/// syncs it and renames it.
std::string read_file(FileSystem& fs, const std::filesystem::path& path, std::int64_t max_bytes = 64 << 20);
void write_file(FileSystem& fs, const std::filesystem::path& path, std::string_view text);
void write_file(FileSystem& fs, const std::filesystem::path& path,
                const std::function<void(WritableFile& file)>& produce);
/// Removes temporary files of `path` that killed writers left. Call it while no process writes `path`.
void remove_leftovers(FileSystem& fs, const std::filesystem::path& path);

}  // namespace lockstep
