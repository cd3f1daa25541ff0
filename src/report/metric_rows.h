// Reads the rows that a run has written: metrics.jsonl, metrics.csv and step_times.csv. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/base/file_system.h>

namespace lockstep {

/// The values of one metric; steps ascend. NaN and infinity are values like others.
struct MetricSeries {
  std::string name{};
  std::vector<std::int64_t> steps{};
  std::vector<double> values{};
};

struct MetricRows {
  std::vector<MetricSeries> series{};  ///< in the order in which the metrics appear
  std::int64_t last_step = 0;
  double last_time = 0;                                  ///< of the last row, in seconds since 1970; 0: not known
  std::vector<std::pair<std::int64_t, double>> times{};  ///< step and time of the last rows
  std::int64_t damaged = 0;                              ///< complete lines that are no rows, left out
  bool cut_off = false;  ///< the last line is incomplete, left out: a crash, or a writer that is at work
  bool partial = false;  ///< only the end of the file was read

  const MetricSeries* find(std::string_view name) const noexcept;  ///< nullptr: there is none

  /// The mean time of a step in the last rows that are not older than `since`; 0: not known.
  double step_seconds(double since) const noexcept;
};

inline constexpr std::int64_t kWholeFile = std::numeric_limits<std::int64_t>::max();

/// metrics.jsonl of the directory, or metrics.csv if that was written later or the other one has no row; nullopt: there
/// is neither. Reads only `last_bytes` at the end of a metrics.jsonl, or as many as its last row needs. Throws:
/// IoError.
std::optional<MetricRows> read_metric_rows(FileSystem& fs, const std::filesystem::path& run,
                                           std::int64_t last_bytes = kWholeFile);
MetricRows parse_metric_lines(std::string_view text);  ///< the content of metrics.jsonl
MetricRows parse_metric_table(std::string_view text);  ///< the content of metrics.csv

/// Where the time of a rank went.
struct RankTimes {
  int rank = 0;
  std::vector<std::pair<std::string, double>> seconds{};  ///< "data", "forward", ... and "other"
};

/// step_times.csv of the directory, summed over all its rows; {}: there is none. Throws: IoError.
std::vector<RankTimes> read_rank_times(FileSystem& fs, const std::filesystem::path& run);
std::vector<RankTimes> parse_rank_times(std::string_view text);

/// Some points of a series. Every interval of steps keeps its smallest and its largest value, so a spike stays visible.
struct ThinSeries {
  std::vector<std::int64_t> steps{};
  std::vector<double> values{};                         ///< finite, or NaN where the curve has a gap
  std::vector<std::pair<std::int64_t, double>> gaps{};  ///< values that are not finite, at most one per interval
};
ThinSeries thin(const MetricSeries& series, std::size_t most_points);

}  // namespace lockstep
