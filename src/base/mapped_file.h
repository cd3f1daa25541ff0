// A file in memory. Torch-free.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

namespace lockstep {

/// Opening costs nothing; pages come from the file when they are touched, and the ranks of a node share them. A page
/// that is written to becomes this process's own; the file stays as it is. Whoever cuts the file off meanwhile kills
/// its readers (SIGBUS).
class MappedFile {
 public:
  using Path = std::filesystem::path;

  /// Throws: IoError (also for what is no regular file).
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
