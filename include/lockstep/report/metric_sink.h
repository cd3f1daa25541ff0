// lockstep/report/metric_sink.h
//
// Destinations of metrics. Torch-free. Only the main rank creates sinks, so callers need not test the rank.
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

/// One line per row: {"step":20,"time":"...","loss":2.1,...}; a non-finite value is the string "NaN", "Infinity" or
/// "-Infinity". Appends; first cuts off the rows after `resume_step` of an earlier attempt, so that a resumed run has
/// every step once.
std::unique_ptr<MetricSink> jsonl_sink(FileSystem& fs, const std::filesystem::path& file, std::int64_t resume_step);
/// A header row, then step and values. If a new column appears, the file is rewritten with all columns.
std::unique_ptr<MetricSink> csv_sink(FileSystem& fs, const std::filesystem::path& file, std::int64_t resume_step);
/// An event file for TensorBoard in `directory`: scalars, and `description` (Markdown) as the text "config". Each sink
/// is a new file; TensorBoard drops the rows after `resume_step` of earlier ones.
std::unique_ptr<MetricSink> tensorboard_sink(FileSystem& fs, const std::filesystem::path& directory,
                                             std::int64_t resume_step, std::string_view description);

}  // namespace lockstep
