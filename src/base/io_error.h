// The error of a failed file operation. Torch-free.
#pragma once

#include <filesystem>
#include <string_view>

namespace lockstep {

/// Throws IoError: "cannot write /path: No space left on device".
[[noreturn]] void throw_io_error(std::string_view verb, const std::filesystem::path& path, int error);

}  // namespace lockstep
