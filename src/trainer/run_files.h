// The main rank's files of a run, apart from checkpoints. Null object on the other ranks.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <lockstep/plan/plan.h>
#include <lockstep/report/metric_sink.h>

#include "base/event_log.h"

namespace lockstep {

class RunFiles {
 public:
  /// `on_main` false: nothing is ever written. Creates the run directory.
  RunFiles(const Plan& plan, bool on_main);
  ~RunFiles();
  /// The run will train: writes config.toml and opens the metric files, without the rows after `resume_step`.
  void begin(std::int64_t resume_step);
  void event(std::string_view name, const EventFields& fields);
  void metrics(std::int64_t step, std::span<const Metric> metrics);

 private:
  const Plan& plan_;
  bool active_;
  std::unique_ptr<EventLog> events_{};
  std::vector<std::unique_ptr<MetricSink>> sinks_{};
};

}  // namespace lockstep
