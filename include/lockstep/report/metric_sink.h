// lockstep/report/metric_sink.h
//
// Where numbers go. Torch-free. Sinks are made on the main rank only: callers never test the rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include <lockstep/base/file_system.h>

namespace [[gnu::visibility("default")]] lockstep {

struct Metric {
  std::string_view name;
  double value = 0;
};

/// One row of numbers per report.
class MetricSink {
 public:
  virtual ~MetricSink() = default;
  /// Throws: IoError. Not thread-safe.
  virtual void write(std::int64_t step, std::span<const Metric> metrics) = 0;
};

/// {"step":20,"time":"...","loss":2.1,...} a line; a value that is not finite is the string "NaN", "Infinity" or "-Infinity".
/// Appends; rows after `resume_step` of an earlier attempt are cut off, so that a resumed run has every step once.
std::unique_ptr<MetricSink> jsonl_sink(FileSystem& fs, const std::filesystem::path& file, std::int64_t resume_step);
/// Header row, then step and values. Columns that appear later widen the file: it is rewritten with the union of the columns.
std::unique_ptr<MetricSink> csv_sink(FileSystem& fs, const std::filesystem::path& file, std::int64_t resume_step);

}  // namespace lockstep
