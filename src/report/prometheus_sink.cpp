// The format: https://prometheus.io/docs/instrumenting/exposition_formats/
#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/report/metric_sink.h>

#include "report/metric_file.h"

namespace lockstep {
namespace {

std::string prometheus_name(std::string_view name) {
  std::string result(name);
  std::ranges::replace_if(
      result, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
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
      : fs_(fs), file_(std::move(file)), run_(fmt::format("run=\"{}\"", label_value(run))) {}

  void write(std::int64_t step, std::span<const MetricValue> metrics) override {
    require_distinct(metrics);
    set("step", static_cast<double>(step));
    for (const MetricValue& metric : metrics) {
      set(metric.name, metric.value);
    }
    std::string text;
    std::string_view previous;
    for (const Value& value : values_) {
      if (value.shown != std::exchange(previous, value.shown)) {
        text += fmt::format("# TYPE lockstep_{} gauge\n", value.shown);
      }
      const std::string name = value.shown == value.name ? "" : fmt::format(",name=\"{}\"", label_value(value.name));
      text += fmt::format("lockstep_{}{{{}{}}} {}\n", value.shown, run_, name, prometheus_number(value.value));
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
  struct Value {
    std::string name{};
    std::string shown{};  // other names may be shown so too: each has a label with its name
    double value = 0;
  };

  void set(std::string_view name, double value) {
    if (const auto known = std::ranges::find(values_, name, &Value::name); known != values_.end()) {
      known->value = value;
      return;
    }
    const std::string shown = prometheus_name(name);
    const auto last = std::find_if(values_.rbegin(), values_.rend(), [&](const Value& v) { return v.shown == shown; });
    values_.insert(last == values_.rend() ? values_.end() : last.base(),
                   {.name = std::string(name), .shown = shown, .value = value});
  }

  FileSystem& fs_;
  std::filesystem::path file_;
  std::string run_;
  std::vector<Value> values_{};  // of all rows so far: a validation has others than a report
  bool failing_ = false;
};

}  // namespace

std::unique_ptr<MetricSink> prometheus_sink(FileSystem& fs, const std::filesystem::path& file, std::string_view run) {
  return std::make_unique<PrometheusSink>(fs, file, run);
}

}  // namespace lockstep
