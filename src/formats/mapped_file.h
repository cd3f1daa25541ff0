// A data file in memory. Torch-free.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

namespace lockstep {

/// Mapped and read-only: opening costs nothing, and the pages are the system's to drop, and shared by all ranks of a
/// node. Whoever cuts the file off meanwhile kills its readers (SIGBUS).
class MappedFile {
 public:
  using Path = std::filesystem::path;

  /// Throws: DataError (missing, no regular file, compressed: with what to do); IoError.
  static std::shared_ptr<const MappedFile> open(const Path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  const Path& path() const noexcept { return path_; }

 private:
  MappedFile(Path path, std::span<const std::byte> bytes) : path_(std::move(path)), bytes_(bytes) {}

  Path path_;
  std::span<const std::byte> bytes_;
};

}  // namespace lockstep
