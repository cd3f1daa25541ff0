// Small text files of other programs: /proc, control groups, a scheduler's lists. Torch-free.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace lockstep {

/// The text of a file; nullopt: there is no file. Tests replace it by a table.
using ReadText = std::function<std::optional<std::string>(const std::string& path)>;

/// Reads a regular file from the disk, at most its first MiB.
std::optional<std::string> read_text_file(const std::string& path);

}  // namespace lockstep
