// Files of the installation to which this program belongs. Torch-free.
#pragma once

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep {

/// `file` is relative to the directory of this program.
inline std::filesystem::path beside_this_program(const std::filesystem::path& file) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    throw LaunchError(fmt::format("cannot read /proc/self/exe: {}", error.message()), "mount /proc");
  }
  return (program.parent_path() / file).lexically_normal();
}

}  // namespace lockstep
