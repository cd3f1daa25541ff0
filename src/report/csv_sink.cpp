#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/report/metric_sink.h>

#include "base/mapped.h"
#include "base/special_number.h"
#include "base/text.h"
#include "report/metric_file.h"

namespace lockstep {
namespace {

std::string quoted(std::string_view name) {
  if (name.find_first_of(",\"") == std::string_view::npos) {
    return std::string(name);
  }
  std::string text = "\"";
  for (const char c : name) {
    text += c == '"' ? "\"\"" : std::string(1, c);
  }
  return text + '"';
}

std::string number(double value) {
  const auto word = special_word(value);
  return word ? std::string(*word) : fmt::format("{}", value);
}

std::int64_t step_of(std::string_view row) {
  return parse_int(row.substr(0, row.find(','))).value_or(0);  // the header has no step
}

class CsvSink final : public MetricSink {
 public:
  CsvSink(FileSystem& fs, std::filesystem::path file, std::int64_t resume_step)
      : fs_(fs), path_(std::move(file)), file_(metric_file(fs_, path_, resume_step, is_ours, step_of)) {}

  void write(std::int64_t step, std::span<const MetricValue> metrics) override {
    require_distinct(metrics);
    const bool written = file_.write(1, [&](WritableFile& file) {
      const std::vector<std::string> known = read_columns();
      std::vector<std::string> columns = known.empty() ? std::vector{std::string(kFirstColumn)} : known;
      std::vector<std::string> cells(columns.size());
      cells.front() = std::to_string(step);
      for (const MetricValue& metric : metrics) {
        const std::string name = printable(metric.name);
        const auto found = std::find(columns.begin() + 1, columns.end(), name);
        const auto index = static_cast<std::size_t>(found - columns.begin());
        if (found == columns.end()) {
          columns.push_back(name);
          cells.emplace_back();
        }
        cells[index] = number(metric.value);
      }
      const std::string row = join(cells, ",") + "\n";
      if (columns.size() > known.size()) {
        columns_.clear();
        write_file(fs_, path_, widened(columns, columns.size() - known.size()));
        append_text(file_.reopen(), row);  // `file` is the old, replaced one
        columns_ = std::move(columns);
      } else {
        append_text(file, row);
      }
    });
    if (!written) {
      columns_.clear();  // the next row may go into a new file
    }
  }

 private:
  static constexpr std::string_view kFirstColumn = "step";

  static bool is_ours(std::string_view begin) {
    const std::size_t end = begin.find_first_of(",\n");
    return end == std::string_view::npos ? kFirstColumn.starts_with(begin) : begin.substr(0, end) == kFirstColumn;
  }

  /// The columns of the file's header; {} for an empty file.
  const std::vector<std::string>& read_columns() {
    if (columns_.empty()) {
      const std::string text = read_metric_file(fs_, path_);
      if (!text.empty()) {
        columns_ = csv_cells(first_line(text));
      }
    }
    return columns_;
  }

  /// Rewrites the file with `more` new columns at the end; old rows get empty cells there.
  std::string widened(const std::vector<std::string>& columns, std::size_t more) const {
    std::string text = join(mapped(columns, quoted), ",") + "\n";
    const std::string before = read_metric_file(fs_, path_);
    std::string_view rows = before;
    for (std::size_t line = 0; !rows.empty(); ++line) {
      const std::size_t end = rows.find('\n');
      if (line > 0) {
        text.append(rows.substr(0, end)).append(more, ',').append("\n");
      }
      rows.remove_prefix(end == std::string_view::npos ? rows.size() : end + 1);  // an editor may have saved it
    }
    return text;
  }

  FileSystem& fs_;
  std::filesystem::path path_;
  std::vector<std::string> columns_{};  // {}: not known yet
  ReportFile file_;
};

}  // namespace

std::unique_ptr<MetricSink> csv_sink(FileSystem& fs, const std::filesystem::path& file, std::int64_t resume_step) {
  return std::make_unique<CsvSink>(fs, file, resume_step);
}

}  // namespace lockstep
