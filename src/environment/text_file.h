// Small text files of other programs: /proc, control groups, a scheduler's lists. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// The text of a file; nullopt: there is no file. Tests replace it by a table.
using ReadText = std::function<std::optional<std::string>(const std::string& path)>;

/// Reads a regular file from the disk, at most its first MiB.
std::optional<std::string> read_text_file(const std::string& path);

/// The number that follows `label` at the start of a line; 0: there is none.
std::int64_t number_after(std::string_view text, std::string_view label);

/// The fields of /proc/PID/stat from the third one (the state) on; {}: malformed. The second field, the name of the
/// program, may contain any characters.
std::vector<std::string> stat_fields(std::string_view stat);

}  // namespace lockstep
