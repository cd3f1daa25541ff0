// Files of a run that the main rank writes, except checkpoints. Does nothing on the other ranks.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <lockstep/plan/plan.h>
#include <lockstep/report/metric_sink.h>

#include "base/event_log.h"

namespace lockstep {

class RunFiles final : public MetricSink {
 public:
  /// Creates the run directory, whose absolute path is `directory`. If `on_main` is false, it writes nothing.
  RunFiles(const Plan& plan, std::filesystem::path directory, bool on_main);
  ~RunFiles() override;
  /// Call it before the training: writes config.toml, opens the metric files and removes rows after `resume_step` (-1:
  /// all rows), makes the sinks of the program.
  void begin(std::int64_t resume_step, std::span<const MetricSinkFactory> own);
  void event(std::string_view name, const EventFields& fields);
  void write(std::int64_t step, std::span<const MetricValue> metrics) override;
  /// This, if a destination keeps histograms, texts and images; else nullptr: they need not be made.
  MetricSink* media() noexcept {
    return (active_ && plan_.config.report.tensorboard) || !own_sinks_.empty() ? this : nullptr;
  }
  void write_histogram(std::int64_t step, std::string_view name, const Histogram& histogram) override;
  void write_text(std::int64_t step, std::string_view name, std::string_view text) override;
  void write_image(std::int64_t step, std::string_view name, const Image& image) override;
  /// At the end of the training: the settings of the run and its last metrics.
  void write_end(std::span<const MetricValue> metrics);
  /// A row of step_times.csv.
  void step_times(std::int64_t step, std::span<const MetricValue> row);

 private:
  void open_files(std::int64_t resume_step);
  void for_each_sink(const std::function<void(MetricSink&)>& tell);

  const Plan& plan_;
  const std::filesystem::path directory_;
  const bool on_main_;
  const bool active_;  // it writes files
  std::unique_ptr<EventLog> events_{};
  std::vector<std::unique_ptr<MetricSink>> sinks_{};
  std::vector<std::unique_ptr<MetricSink>> own_sinks_{};
  std::unique_ptr<MetricSink> step_times_{};
};

}  // namespace lockstep
