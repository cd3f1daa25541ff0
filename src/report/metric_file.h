// What the line-based sinks share. Torch-free.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include <lockstep/base/file_system.h>

namespace lockstep {

/// The whole file; "" if there is none.
std::string read_metric_file(FileSystem& fs, const std::filesystem::path& file);

/// Removes the lines that `keep` refuses and a last line that was torn by a crash. Rewrites the file only if that
/// changes it.
void truncate_metric_file(FileSystem& fs, const std::filesystem::path& file,
                          const std::function<bool(std::string_view)>& keep);

/// One append, so that a row is there as a whole or not at all.
void append_text(WritableFile& file, std::string_view text);

}  // namespace lockstep
