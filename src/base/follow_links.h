// Links in the path of a file that the user named. Torch-free.
#pragma once

#include <filesystem>

namespace lockstep {

/// The file behind `file`, to be opened by a FileSystem, which follows no links; `file` itself if there is none.
inline std::filesystem::path follow_links(const std::filesystem::path& file) {
  std::error_code error;
  std::filesystem::path target = std::filesystem::canonical(file, error);
  return error ? file : target;
}

}  // namespace lockstep
