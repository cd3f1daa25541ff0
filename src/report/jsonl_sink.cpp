#include <chrono>
#include <exception>
#include <string>

#include <fmt/format.h>

#include <lockstep/report/metric_sink.h>

#include "base/json.h"
#include "report/metric_file.h"

namespace lockstep {
namespace {

/// "2026-11-21T10:00:00.123Z"
std::string utc_time() {
  using namespace std::chrono;
  const auto now = floor<milliseconds>(system_clock::now());
  const auto day = floor<days>(now);
  const year_month_day date(day);
  const hh_mm_ss time(now - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), time.hours().count(),
                     time.minutes().count(), time.seconds().count(), time.subseconds().count());
}

class JsonlSink final : public MetricSink {
 public:
  JsonlSink(FileSystem& fs, const std::filesystem::path& file, std::int64_t resume_step)
      : file_(metric_file(fs, file, resume_step, is_ours, step_of)) {}

  void write(std::int64_t step, std::span<const Metric> metrics) override {
    require_distinct(metrics);
    Json row{{"step", step}, {"time", utc_time()}};
    for (const Metric& metric : metrics) {
      row[std::string(metric.name)] = metric.value;
    }
    file_.write(1, [&](WritableFile& file) { append_text(file, dump_json(row) + "\n"); });
  }

 private:
  static bool is_ours(std::string_view begin) {
    constexpr std::string_view kBegin = R"({"step":)";
    return begin.starts_with(kBegin) || kBegin.starts_with(begin);
  }

  /// A line that is not ours has no step: it stays.
  static std::int64_t step_of(std::string_view row) {
    try {
      return parse_json(row).at("step").get<std::int64_t>();
    } catch (const std::exception&) {
      return 0;
    }
  }

  ReportFile file_;
};

}  // namespace

std::unique_ptr<MetricSink> jsonl_sink(FileSystem& fs, const std::filesystem::path& file, std::int64_t resume_step) {
  return std::make_unique<JsonlSink>(fs, file, resume_step);
}

}  // namespace lockstep
