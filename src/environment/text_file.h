// Small text files that others wrote: /proc, control groups, a scheduler's lists. Torch-free.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace lockstep {

/// The text of a file; nullopt where there is none. Tests hand in a table.
using ReadText = std::function<std::optional<std::string>(const std::string& path)>;

/// From the disk: a regular file, of which at most the first MiB is read.
std::optional<std::string> read_text_file(const std::string& path);

}  // namespace lockstep
