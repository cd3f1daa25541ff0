#include "report/metric_rows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>
#include <span>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/json.h"
#include "base/paths.h"
#include "base/run_files.h"
#include "base/special_number.h"
#include "base/text.h"
#include "base/wall_clock.h"
#include "report/metric_file.h"

namespace lockstep {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// nullopt for a part of a step, and for a number that a page cannot draw exactly: the row is a damaged one.
std::optional<std::int64_t> step_of(double value) {
  constexpr double kMost = 1e15;
  return std::abs(value) <= kMost && value == std::floor(value) ? std::optional(static_cast<std::int64_t>(value))
                                                                : std::nullopt;
}

std::optional<std::int64_t> parse_step(std::string_view cell) {
  const auto number = parse_int(cell);
  return number ? step_of(static_cast<double>(*number)) : std::nullopt;
}

struct Cell {
  std::string name{};
  double value = 0;
};

/// One row, as a handler of the JSON parser: a file may have millions of rows, so none becomes a tree of objects.
struct RowReader {
  std::optional<std::int64_t> step{};
  std::string time{};
  std::vector<Cell> cells{};
  std::string name{};
  int depth = 0;

  bool number(double value) {
    if (depth == 1) {
      if (name == "step") {
        step = step_of(value);
      } else {
        cells.push_back({name, value});
      }
    }
    return true;
  }

  bool key(std::string& text) {
    if (depth == 1) {
      name = text;
    }
    return true;
  }
  bool string(std::string& text) {
    if (depth == 1 && name == "time") {
      time = text;
    } else if (const auto value = special_number(text)) {
      return number(*value);
    }
    return true;
  }
  bool number_integer(std::int64_t value) { return number(static_cast<double>(value)); }
  bool number_unsigned(std::uint64_t value) { return number(static_cast<double>(value)); }
  bool number_float(double value, const std::string&) { return number(value); }
  bool start_object(std::size_t) { return ++depth > 0; }
  bool end_object() { return --depth >= 0; }
  bool start_array(std::size_t) { return ++depth > 0; }
  bool end_array() { return --depth >= 0; }
  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool binary(Json::binary_t&) { return true; }
  template <class... Where>
  bool parse_error(const Where&...) {
    return false;
  }
};

class Collector {
 public:
  void add(std::int64_t step, std::span<const Cell> cells, std::string_view time) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      MetricSeries& series = find(cells[i].name, i);
      series.steps.push_back(step);
      series.values.push_back(cells[i].value);
    }
    rows_.last_step = std::max(rows_.last_step, step);
    if (const auto at = parse_utc_time(time)) {
      rows_.last_time = *at;
      rows_.times.emplace_back(step, *at);
      if (rows_.times.size() > 2 * kTimes) {
        rows_.times.erase(rows_.times.begin(), rows_.times.end() - kTimes);
      }
    }
  }
  void add_damaged() { ++rows_.damaged; }

  MetricRows finish(bool cut_off) {
    rows_.cut_off = cut_off;
    for (MetricSeries& series : rows_.series) {
      sort(series);
    }
    if (rows_.times.size() > kTimes) {
      rows_.times.erase(rows_.times.begin(), rows_.times.end() - kTimes);
    }
    return std::move(rows_);
  }

 private:
  static constexpr std::size_t kTimes = 10;

  /// Rows have the same metrics in the same order, almost always.
  MetricSeries& find(const std::string& name, std::size_t guess) {
    if (guess < rows_.series.size() && rows_.series[guess].name == name) {
      return rows_.series[guess];
    }
    const auto [at, is_new] = index_.try_emplace(name, rows_.series.size());
    if (is_new) {
      rows_.series.push_back({.name = name});
    }
    return rows_.series[at->second];
  }

  /// lockstep writes ascending steps; a file that someone has put together may not.
  static void sort(MetricSeries& series) {
    if (std::ranges::is_sorted(series.steps)) {
      return;
    }
    std::vector<std::size_t> order(series.steps.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return series.steps[i]; });
    MetricSeries sorted{.name = series.name};
    for (const std::size_t i : order) {
      sorted.steps.push_back(series.steps[i]);
      sorted.values.push_back(series.values[i]);
    }
    series = std::move(sorted);
  }

  MetricRows rows_{};
  std::map<std::string, std::size_t> index_{};
};

std::optional<double> number(std::string_view cell) {
  const auto special = special_number(cell);
  return special ? special : parse_double(cell);
}

struct FileEnd {
  std::string text{};
  bool is_whole = false;
};

/// The last bytes of a file, from the beginning of a line. More of them if no complete line is in them. Throws:
/// IoError.
FileEnd read_end(FileSystem& fs, const std::filesystem::path& path, std::int64_t bytes) {
  constexpr std::int64_t kLongestLine = std::int64_t{64} << 20;
  const auto file = fs.open(path);
  const std::int64_t size = file->size();
  for (;; bytes *= 2) {
    const std::int64_t begin = std::max<std::int64_t>(0, size - bytes);
    std::string text(static_cast<std::size_t>(size - begin), '\0');
    file->read(begin, std::as_writable_bytes(std::span(text)));
    if (begin == 0) {
      return {std::move(text), true};
    }
    if (const std::size_t end = text.find('\n'); end != text.rfind('\n')) {
      return {text.substr(end + 1), false};
    }
    if (bytes / 2 >= kLongestLine) {  // at most one line ends there
      throw IoError(fmt::format("cannot read {}: a line is longer than {}, the limit of a row",
                                printable(path.string()), human_bytes(kLongestLine)),
                    "restore the file from a copy, or delete it");
    }
  }
}

void add_point(ThinSeries& thin, const MetricSeries& series, std::size_t i) {
  if (thin.steps.empty() || thin.steps.back() != series.steps[i] || thin.values.back() != series.values[i]) {
    thin.steps.push_back(series.steps[i]);
    thin.values.push_back(series.values[i]);
  }
}

}  // namespace

const MetricSeries* MetricRows::find(std::string_view name) const noexcept {
  const auto found = std::ranges::find(series, name, &MetricSeries::name);
  return found == series.end() ? nullptr : &*found;
}

double MetricRows::step_seconds(double since) const noexcept {
  const auto first = std::ranges::find_if(times, [since](const auto& row) { return row.second >= since; });
  const auto steps = first == times.end() ? 0.0 : static_cast<double>(times.back().first - first->first);
  return steps > 0 ? (times.back().second - first->second) / steps : 0;
}

MetricRows parse_metric_lines(std::string_view text) {
  Collector rows;
  const bool cut_off = for_each_line(text, [&](std::string_view line) {
    RowReader row;
    if (line.find('\0') == std::string_view::npos && Json::sax_parse(line.begin(), line.end(), &row) && row.step) {
      rows.add(*row.step, row.cells, row.time);
    } else {
      rows.add_damaged();
    }
  });
  return rows.finish(cut_off);
}

MetricRows parse_metric_table(std::string_view text) {
  Collector rows;
  std::vector<std::string> columns;
  const bool cut_off = for_each_line(text, [&](std::string_view line) {
    if (columns.empty()) {
      columns = csv_cells(line);
      return;
    }
    const auto texts = split(line, ',');
    const auto step = parse_step(texts.front());
    std::vector<Cell> cells;
    bool valid = step && texts.size() == columns.size();
    for (std::size_t i = 1; valid && i < texts.size(); ++i) {
      if (!texts[i].empty()) {
        const auto value = number(texts[i]);
        valid = value.has_value();
        cells.push_back({columns[i], value.value_or(0)});
      }
    }
    if (valid) {
      rows.add(*step, cells, {});
    } else {
      rows.add_damaged();
    }
  });
  return rows.finish(cut_off);
}

namespace {

/// nullopt: there is no file.
std::optional<MetricRows> read_metric_lines(FileSystem& fs, const std::filesystem::path& lines,
                                            std::int64_t last_bytes) {
  constexpr std::int64_t kMost = std::int64_t{4} << 30;
  if (!fs.exists(lines)) {
    return std::nullopt;
  }
  const FileEnd end = read_end(fs, lines, std::min(last_bytes, kMost));
  MetricRows rows = parse_metric_lines(end.text);
  rows.partial = !end.is_whole;
  return rows;
}

}  // namespace

std::optional<MetricRows> read_metric_rows(FileSystem& fs, const std::filesystem::path& run, std::int64_t last_bytes) {
  const auto lines = run / kMetricLinesName;
  const auto table = run / kMetricTableName;
  const bool has_table = fs.exists(table);
  std::optional<MetricRows> rows;
  try {
    rows = read_metric_lines(fs, lines, last_bytes);
  } catch (const IoError&) {
    if (!has_table) {
      throw;
    }
  }
  // A later start may have written only the table.
  if (has_table && (!rows || rows->series.empty() || was_written_later(table, lines))) {
    rows = parse_metric_table(read_metric_file(fs, table));
  }
  return rows;
}

namespace {

/// Of a file without the column "steps": the report before the first row. The rows of a run that did not write them
/// from its beginning on start late: then the first ones are as many steps after it as the second ones are after the
/// first.
std::int64_t step_before(std::string_view text) {
  std::vector<std::int64_t> steps;  // the first two
  for_each_line(text, [&](std::string_view line) {
    const auto step = steps.size() < 2 ? parse_step(line.substr(0, line.find(','))) : std::nullopt;
    if (step && (steps.empty() || steps.front() != *step)) {
      steps.push_back(*step);
    }
  });
  return steps.size() < 2 || steps[1] < steps[0] ? 0 : std::max<std::int64_t>(0, steps[0] - (steps[1] - steps[0]));
}

}  // namespace

std::vector<RankTimes> parse_rank_times(std::string_view text) {
  constexpr std::string_view kSuffix = "_ms";
  constexpr std::string_view kStepsColumn = "steps";  // over which the times of the row are means
  std::vector<std::string> columns;
  std::map<int, RankTimes> ranks;
  std::int64_t current = step_before(text);
  std::int64_t previous = 0;            // the report before: a rank may be new since a resume
  std::optional<std::size_t> steps_at;  // the column
  std::map<int, double> others;
  for_each_line(text, [&](std::string_view line) {
    if (columns.empty()) {
      columns = csv_cells(line);
      if (const auto found = std::ranges::find(columns, kStepsColumn); found != columns.end()) {
        steps_at = static_cast<std::size_t>(found - columns.begin());
      }
      return;
    }
    const auto cells = split(line, ',');
    const auto step = parse_step(cells.front());
    const auto rank = cells.size() == columns.size() && cells.size() > 2 ? parse_int(cells[1]) : std::nullopt;
    if (!step || !rank || *rank < 0 || *rank > std::numeric_limits<int>::max()) {
      return;
    }
    if (*step != current) {
      previous = std::exchange(current, *step);
    }
    const int index = static_cast<int>(*rank);
    // Empty in rows that are older than the column.
    const auto counted_steps = steps_at ? number(cells[*steps_at]) : std::nullopt;
    const double steps = counted_steps.value_or(static_cast<double>(current - previous));
    RankTimes& times = ranks[index];
    times.rank = index;
    double whole = 0;
    double parts = 0;
    std::size_t part = 0;
    for (std::size_t i = 2; i < cells.size(); ++i) {
      if (i == steps_at) {
        continue;
      }
      const double seconds = number(cells[i]).value_or(0) * steps / 1000;
      std::string_view name = columns[i];
      if (name == "step_ms") {
        whole = seconds;
        continue;
      }
      name.remove_suffix(name.ends_with(kSuffix) ? kSuffix.size() : 0);
      times.seconds.resize(std::max(times.seconds.size(), part + 1));
      times.seconds[part].first = name;
      times.seconds[part++].second += seconds;
      parts += seconds;
    }
    others[index] += whole - parts;
  });
  std::vector<RankTimes> all;
  for (auto& [rank, times] : ranks) {
    times.seconds.emplace_back("other", std::max(0.0, others[rank]));
    all.push_back(std::move(times));
  }
  return all;
}

std::vector<RankTimes> read_rank_times(FileSystem& fs, const std::filesystem::path& run) {
  return parse_rank_times(read_metric_file(fs, run / "step_times.csv"));
}

ThinSeries thin(const MetricSeries& series, std::size_t most_points) {
  ThinSeries thin;
  const std::size_t count = series.steps.size();
  if (count == 0) {
    return thin;
  }
  // Up to three points of each interval are kept: the smallest, the largest, and one that is not finite.
  const std::size_t buckets = count <= most_points ? count : std::max<std::size_t>(1, (most_points - 2) / 3);
  add_point(thin, series, 0);
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
    const std::size_t begin = bucket * count / buckets;
    const std::size_t end = (bucket + 1) * count / buckets;
    std::optional<std::size_t> least;
    std::optional<std::size_t> most;
    std::optional<std::size_t> gap;
    for (std::size_t i = begin; i < end; ++i) {
      if (!std::isfinite(series.values[i])) {
        gap = gap.value_or(i);
        continue;
      }
      least = !least || series.values[i] < series.values[*least] ? i : *least;
      most = !most || series.values[i] > series.values[*most] ? i : *most;
    }
    std::vector<std::size_t> kept;
    for (const auto& index : {least, most, gap}) {
      if (index) {
        kept.push_back(*index);
      }
    }
    std::ranges::sort(kept);
    for (const std::size_t i : kept) {
      add_point(thin, series, i);
    }
  }
  add_point(thin, series, count - 1);
  for (std::size_t i = 0; i < thin.steps.size(); ++i) {
    if (!std::isfinite(thin.values[i])) {
      thin.gaps.emplace_back(thin.steps[i], thin.values[i]);
      thin.values[i] = kNaN;
    }
  }
  return thin;
}

}  // namespace lockstep
