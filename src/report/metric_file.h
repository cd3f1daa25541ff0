// Shared by the sinks that write lines. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/base/file_system.h>
#include <lockstep/report/metric_sink.h>

#include "base/json.h"
#include "base/report_file.h"

namespace lockstep {

/// The whole file; "": there is no file.
std::string read_metric_file(FileSystem& fs, const std::filesystem::path& file);

/// A file of rows that is created, or continued after `resume_step` (-1: from its beginning): rows of later steps and
/// an incomplete last row are cut off. `is_ours` gets the first 16 bytes (or fewer); `step_of` returns the step of a
/// row, 0 if it has none.
ReportFile metric_file(FileSystem& fs, const std::filesystem::path& file, std::int64_t resume_step,
                       bool (*is_ours)(std::string_view begin), std::int64_t (*step_of)(std::string_view row));

/// Appends with one write, so that a row is complete or missing.
void append_text(WritableFile& file, std::string_view text);

/// The cells of a header row. A quote inside a quoted cell is doubled, so it ends the cell and starts it again.
std::vector<std::string> csv_cells(std::string_view line);

/// {"step":20,"time":"...","loss":2.1,...}
Json metric_row(std::int64_t step, std::span<const MetricValue> metrics);

/// Throws: Error if two metrics have the same name, or one has a name that every row contains.
void require_distinct(std::span<const MetricValue> metrics);

}  // namespace lockstep
