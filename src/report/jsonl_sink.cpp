#include <exception>
#include <string>

#include <lockstep/report/metric_sink.h>

#include "base/json.h"
#include "report/metric_file.h"

namespace lockstep {
namespace {

class JsonlSink final : public MetricSink {
 public:
  JsonlSink(FileSystem& fs, const std::filesystem::path& file, std::int64_t resume_step)
      : file_(metric_file(fs, file, resume_step, is_ours, step_of)) {}

  void write(std::int64_t step, std::span<const MetricValue> metrics) override {
    require_distinct(metrics);
    const std::string row = dump_json(metric_row(step, metrics)) + "\n";
    file_.write(1, [&](WritableFile& file) { append_text(file, row); });
  }

 private:
  static bool is_ours(std::string_view begin) {
    constexpr std::string_view kBegin = R"({"step":)";
    return begin.starts_with(kBegin) || kBegin.starts_with(begin);
  }

  /// A line of another program has no step; it stays.
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
