// lockstep/report/metric_sink.h
//
// Destinations of metrics. Torch-free. Only the main rank creates sinks, so callers need not test the rank.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/base/file_system.h>
#include <lockstep/base/variables.h>

namespace [[gnu::visibility("default")]] lockstep {

/// A number of a report and its name.
struct MetricValue {
  std::string_view name;  ///< copy it to keep it: a sink gets it for the time of the call
  double value = 0;
};

/// A distribution of numbers.
struct Histogram {
  double min = 0;
  double max = 0;
  double count = 0;
  double sum = 0;
  double sum_of_squares = 0;
  std::vector<double> limits{};  ///< upper ends of the buckets, rising
  std::vector<double> counts{};  ///< in each bucket
};

/// Rows of 8-bit pixels, from the top.
struct Image {
  int width = 0;
  int height = 0;
  int channels = 1;      ///< 1: gray, 3: red, green, blue
  std::string pixels{};  ///< width x height x channels bytes
};

/// A setting of a run, or a flag of the program.
struct RunSetting {
  std::string name{};
  std::string text{};
  bool is_text = false;  ///< also where it looks like a number; else a number, "true" or "false", or "" for no number
};

/// One row of numbers per report. The other functions do nothing in sinks that cannot keep such values.
class MetricSink {
 public:
  virtual ~MetricSink() = default;
  /// Throws: IoError. Not thread-safe.
  virtual void write(std::int64_t step, std::span<const MetricValue> metrics) = 0;
  virtual void write_histogram(std::int64_t, std::string_view /*name*/, const Histogram&) {}
  virtual void write_text(std::int64_t, std::string_view /*name*/, std::string_view /*text*/) {}
  virtual void write_image(std::int64_t, std::string_view /*name*/, const Image&) {}
  /// At the end of a run, once: its settings, and its last metrics.
  virtual void finish(std::span<const RunSetting>, std::span<const MetricValue>) {}
};

/// Makes a sink of the program; see Trainer::add_sink. `resume_step`: the step of the checkpoint from which the run
/// goes on, -1 without one. The steps after it are trained again, and with -1 also the validation of step 0.
using MetricSinkFactory = std::function<std::unique_ptr<MetricSink>(std::int64_t resume_step)>;

/// One line per row: {"step":20,"time":"...","loss":2.1,...}; a non-finite value is the string "NaN", "Infinity" or
/// "-Infinity". Appends; first cuts off the rows after `resume_step` (-1: all rows) of an earlier attempt, so that a
/// resumed run has every step once.
std::unique_ptr<MetricSink> jsonl_sink(FileSystem& fs, const std::filesystem::path& file, std::int64_t resume_step);
/// A header row, then step and values. If a new column appears, the file is rewritten with all columns.
std::unique_ptr<MetricSink> csv_sink(FileSystem& fs, const std::filesystem::path& file, std::int64_t resume_step);
/// An event file for TensorBoard in `directory`: scalars, and `description` (Markdown) as the text "config". Each sink
/// is a new file; TensorBoard drops the rows after `resume_step` of earlier ones.
std::unique_ptr<MetricSink> tensorboard_sink(FileSystem& fs, const std::filesystem::path& directory,
                                             std::int64_t resume_step, std::string_view description);

/// The last values in the text format of Prometheus, which a textfile collector reads: each write replaces the file.
/// Names get the prefix "lockstep_", and '_' for characters that Prometheus does not allow; a label
/// name="..." has the name where that changed it. Another label is run="`run`".
std::unique_ptr<MetricSink> prometheus_sink(FileSystem& fs, const std::filesystem::path& file, std::string_view run);
/// Starts `/bin/sh -c command` with this environment and sends it lines of JSON: first
/// {"run_dir":...,"resume_step":...,"settings":{...}} with a text, number, true or false for each setting, then each
/// row as in jsonl_sink. A write never waits: what the program has not read yet is kept in memory, up to 64 MiB. The
/// program should end at the end of its input. The destructor waits for it up to `patience`, then ends it; after an
/// exception it does not wait. A program that ends earlier, or with another code than 0, causes one warning.
std::unique_ptr<MetricSink> command_sink(const std::string& command, const Variables& environment,
                                         const std::filesystem::path& run_dir, std::int64_t resume_step,
                                         std::span<const RunSetting> settings = {},
                                         std::chrono::milliseconds patience = std::chrono::seconds(10));

}  // namespace lockstep
