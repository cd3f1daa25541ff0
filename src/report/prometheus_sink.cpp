// The format: https://prometheus.io/docs/instrumenting/exposition_formats/
#include <cctype>
#include <cmath>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/report/metric_sink.h>

#include "report/metric_file.h"

namespace lockstep {
namespace {

std::string prometheus_name(std::string_view name) {
  std::string result = "lockstep_";
  for (const char c : name) {
    result += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return result;
}

std::string label_value(std::string_view text) {
  std::string result;
  for (const char c : text) {
    result += c == '\n' ? "\\n" : c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
  }
  return result;
}

std::string prometheus_number(double value) {
  return std::isnan(value) ? "NaN" : std::isinf(value) ? (value > 0 ? "+Inf" : "-Inf") : fmt::format("{}", value);
}

class PrometheusSink final : public MetricSink {
 public:
  PrometheusSink(FileSystem& fs, std::filesystem::path file, std::string_view run)
      : fs_(fs), file_(std::move(file)), labels_(fmt::format("{{run=\"{}\"}}", label_value(run))) {}

  void write(std::int64_t step, std::span<const MetricValue> metrics) override {
    require_distinct(metrics);
    set("step", static_cast<double>(step));
    for (const MetricValue& metric : metrics) {
      set(metric.name, metric.value);
    }
    std::string text;
    for (const auto& [name, value] : values_) {
      text += fmt::format("# TYPE {} gauge\n{}{} {}\n", name, name, labels_, prometheus_number(value));
    }
    try {
      write_file(fs_, file_, text);
      failing_ = false;
    } catch (const IoError& error) {  // a missing report does not end the run
      if (!std::exchange(failing_, true)) {
        log_warning(fmt::format("{}; the run goes on without it", error.what()));
      }
    }
  }

 private:
  void set(std::string_view name, double value) {
    const std::string key = prometheus_name(name);
    for (auto& [known, old] : values_) {
      if (known == key) {
        old = value;
        return;
      }
    }
    values_.emplace_back(key, value);
  }

  FileSystem& fs_;
  std::filesystem::path file_;
  std::string labels_;
  std::vector<std::pair<std::string, double>> values_{};  // of all rows so far: a validation has others than a report
  bool failing_ = false;
};

}  // namespace

std::unique_ptr<MetricSink> prometheus_sink(FileSystem& fs, const std::filesystem::path& file, std::string_view run) {
  return std::make_unique<PrometheusSink>(fs, file, run);
}

}  // namespace lockstep
