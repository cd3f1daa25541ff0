// lockstep/base/file_system.h
//
// Every file the library writes goes through this interface, so that tests can lose power or fill the disk. Torch-free.
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

namespace [[gnu::visibility("default")]] lockstep {

/// A file being written. Nothing is durable before sync().
class WritableFile {
 public:
  virtual ~WritableFile() = default;  ///< closes without syncing; never throws
  /// Before the first append: sets `bytes` aside on the disk, where the file system can. A file that is known to become
  /// large goes past the page cache. Throws: IoError where they are not to be had.
  virtual void reserve(std::int64_t bytes) = 0;
  virtual void append(std::span<const std::byte> bytes) = 0;  ///< what fails may be reported by a later call
  virtual void truncate(std::int64_t bytes) = 0;  ///< keeps the first `bytes`; of files from open_append() only
  virtual void sync() = 0;   ///< fsync. After a failure the file must be discarded, never synced again.
  virtual void close() = 0;  ///< reports what close(2) reports
};

/// A file being read. Only regular files are opened; symbolic links are not followed.
class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  virtual std::int64_t size() const = 0;
  /// Reads exactly `out.size()` bytes at `offset`. Throws: IoError when the file is shorter.
  virtual void read(std::int64_t offset, std::span<std::byte> out) const = 0;
};

/// A lock that dies with its owner (flock).
class FileLock {
 public:
  virtual ~FileLock() = default;
};

/// All operations throw IoError naming the path and the errno text. Who may read what they create is the umask's to
/// say. Thread-safe.
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
  /// Atomically makes `link` a symbolic link that says `target`. Fails where something else than a link is in its
  /// place.
  virtual void replace_link(const Path& link, const Path& target) = 0;
  virtual std::optional<Path> read_link(const Path& path) = 0;  ///< nullopt: there is no link
  virtual void remove(const Path& path) = 0;  ///< a file or a link, never a directory; missing is fine
  virtual void remove_all(const Path& path) = 0;                ///< missing is fine; of a link the link itself
  virtual bool exists(const Path& path) = 0;
  virtual std::vector<std::string> list(const Path& path) = 0;  ///< names, sorted; {} if missing
  virtual std::int64_t free_bytes(const Path& path) = 0;
  /// Takes an exclusive lock on `path` (created if missing). nullptr: somebody else holds it; `owner` then gets the
  /// lock file's text.
  virtual std::unique_ptr<FileLock> try_lock(const Path& path, const std::string& my_text, std::string& owner) = 0;
};

/// The operating system's files. Stateless; one object for the process.
FileSystem& real_file_system() noexcept;

/// Whole files. `write_file` is atomic and durable: temporary file <name>.tmp.<16 hexadecimal digits>, fsync, rename.
std::string read_file(FileSystem& fs, const std::filesystem::path& path, std::int64_t max_bytes = 64 << 20);
void write_file(FileSystem& fs, const std::filesystem::path& path, std::string_view text);
void write_file(FileSystem& fs, const std::filesystem::path& path,
                const std::function<void(WritableFile& file)>& produce);
/// Removes the temporary files of `path` that writers left which were killed. Call when nobody is writing it.
void remove_leftovers(FileSystem& fs, const std::filesystem::path& path);

}  // namespace lockstep
