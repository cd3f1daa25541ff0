// Paths of files and directories. Torch-free.
#pragma once

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>

namespace lockstep {

/// The file behind `file`, to be opened by a FileSystem, which follows no links; `file` itself if there is none.
inline std::filesystem::path follow_links(const std::filesystem::path& file) {
  std::error_code error;
  std::filesystem::path target = std::filesystem::canonical(file, error);
  return error ? file : target;
}

/// The directory in which `path` is: "." for a name alone.
inline std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

/// By more than a second: a run writes its files at about the same time, and so does a copy of it. False if one of them
/// is missing.
inline bool was_written_later(const std::filesystem::path& file, const std::filesystem::path& other) {
  std::error_code failure;
  const auto of_file = std::filesystem::last_write_time(file, failure);
  const auto of_other = failure ? of_file : std::filesystem::last_write_time(other, failure);
  return !failure && of_file > of_other + std::chrono::seconds(1);
}

/// "": it was deleted.
inline std::filesystem::path working_directory() {
  std::error_code error;
  return std::filesystem::current_path(error);
}

/// The absolute path without links and without a slash at its end. It does not have to exist.
inline std::filesystem::path without_links(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path full = std::filesystem::absolute(path, error);
  const std::filesystem::path found = std::filesystem::weakly_canonical(full, error);
  const std::filesystem::path normal = error ? full.lexically_normal() : found;
  return normal.has_filename() ? normal : normal.parent_path();  // "a/" -> "a"
}

/// Whether `path` is in `directory`, or is the directory itself. Follows links. Neither has to exist.
inline bool is_inside(const std::filesystem::path& path, const std::filesystem::path& directory) {
  const std::filesystem::path inner = without_links(path);
  const std::filesystem::path outer = without_links(directory);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace lockstep
