// The working directory of the process, for a scope.
#pragma once

#include <filesystem>

namespace lockstep {

class WorkingDirectory {
 public:
  explicit WorkingDirectory(const std::filesystem::path& directory) { std::filesystem::current_path(directory); }
  ~WorkingDirectory() { std::filesystem::current_path(before_); }
  WorkingDirectory(const WorkingDirectory&) = delete;
  WorkingDirectory& operator=(const WorkingDirectory&) = delete;

 private:
  const std::filesystem::path before_ = std::filesystem::current_path();
};

}  // namespace lockstep
