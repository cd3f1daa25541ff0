// What the line-based sinks share. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include <lockstep/base/file_system.h>
#include <lockstep/report/metric_sink.h>

#include "base/report_file.h"

namespace lockstep {

/// The whole file; "" if there is none.
std::string read_metric_file(FileSystem& fs, const std::filesystem::path& file);

/// A file of rows that is made, or continued after `resume_step`: rows of later steps are cut off, and a last row that
/// was torn. `is_ours`: by the first 16 bytes, or as many as there are. `step_of`: of a row; 0 if it has none.
ReportFile metric_file(FileSystem& fs, const std::filesystem::path& file, std::int64_t resume_step,
                       bool (*is_ours)(std::string_view begin), std::int64_t (*step_of)(std::string_view row));

/// One append, so that a row is there as a whole or not at all.
void append_text(WritableFile& file, std::string_view text);

/// Throws: Error when two have one name, or one has a name that every row has.
void require_distinct(std::span<const Metric> metrics);

}  // namespace lockstep
