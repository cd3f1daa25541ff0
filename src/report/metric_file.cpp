#include "report/metric_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{4} << 30;
constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

std::string first_bytes(const RandomAccessFile& file) {
  std::string text(static_cast<std::size_t>(std::min<std::int64_t>(file.size(), 16)), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

/// Offset of the first row of a step after `resume_step`.
std::int64_t end_of_steps(const RandomAccessFile& file, std::int64_t resume_step,
                          std::int64_t (*step_of)(std::string_view row)) {
  const std::int64_t size = end_of_last_line(file);
  std::string block;
  std::int64_t begin = 0;  // of a row
  for (std::int64_t bytes = kBlockBytes; begin < size;) {
    block.resize(static_cast<std::size_t>(std::min(bytes, size - begin)));
    file.read(begin, std::as_writable_bytes(std::span(block)));
    std::string_view rest = block;
    for (std::size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      if (step_of(rest.substr(0, end)) > resume_step) {
        return begin;
      }
      rest.remove_prefix(end + 1);
      begin += static_cast<std::int64_t>(end + 1);
    }
    bytes *= rest.size() == block.size() ? 2 : 1;  // a row is longer than the block
  }
  return begin;
}

}  // namespace

std::string read_metric_file(FileSystem& fs, const std::filesystem::path& file) {
  return fs.exists(file) ? read_file(fs, file, kMaxBytes) : std::string{};
}

ReportFile metric_file(FileSystem& fs, const std::filesystem::path& file, std::int64_t resume_step,
                       bool (*is_ours)(std::string_view begin), std::int64_t (*step_of)(std::string_view row)) {
  bool resumed = false;  // later openings follow a failure: cut off only an incomplete row
  return {fs, file, "rows", [=, &fs](WritableFile& out, const RandomAccessFile& content) mutable {
            if (!resumed) {
              remove_leftovers(fs, file);
            }
            if (!is_ours(first_bytes(content))) {
              return false;
            }
            const std::int64_t end = resumed ? end_of_last_line(content) : end_of_steps(content, resume_step, step_of);
            if (end < content.size()) {
              out.truncate(end);
            }
            resumed = true;
            return true;
          }};
}

void append_text(WritableFile& file, std::string_view text) { file.append(std::as_bytes(std::span(text))); }

std::vector<std::string> csv_cells(std::string_view line) {
  std::vector<std::string> cells(1);
  bool inside = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      if (!inside && i > 0 && line[i - 1] == '"') {
        cells.back() += '"';
      }
      inside = !inside;
    } else if (line[i] == ',' && !inside) {
      cells.emplace_back();
    } else {
      cells.back() += line[i];
    }
  }
  return cells;
}

Json metric_row(std::int64_t step, std::span<const MetricValue> metrics) {
  Json row{{"step", step}, {"time", utc_time()}};
  for (const MetricValue& metric : metrics) {
    row[std::string(metric.name)] = metric.value;
  }
  return row;
}

void require_distinct(std::span<const MetricValue> metrics) {
  std::set<std::string> names{"step", "time"};
  for (const MetricValue& metric : metrics) {
    const std::string name = printable(metric.name);  // as the files have it
    if (!names.insert(name).second) {
      throw Error(fmt::format("two metrics of a report are called '{}'", name),
                  "give every metric a unique name; loss, lr, grad_norm, samples_per_s, epoch, step and time are "
                  "lockstep's");
    }
  }
}

}  // namespace lockstep
