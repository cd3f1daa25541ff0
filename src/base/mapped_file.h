// A memory-mapped file. Torch-free.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

namespace lockstep {

/// Opening costs nothing: pages are read on first access, and the ranks of a node share them. A page that is written to
/// becomes private to this process; the file does not change. If another process truncates the file, readers are killed
/// (SIGBUS).
class MappedFile {
 public:
  using Path = std::filesystem::path;

  /// Throws: IoError (also if `path` is not a regular file).
  static std::shared_ptr<MappedFile> open(const Path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  std::span<std::byte> bytes() noexcept { return bytes_; }
  const Path& path() const noexcept { return path_; }

 private:
  MappedFile(Path path, std::span<std::byte> bytes) : path_(std::move(path)), bytes_(bytes) {}

  Path path_;
  std::span<std::byte> bytes_;
};

}  // namespace lockstep
