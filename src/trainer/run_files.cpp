#include "trainer/run_files.h"

#include <filesystem>

#include <lockstep/base/file_system.h>
#include <lockstep/config/config_io.h>

namespace lockstep {

RunFiles::RunFiles(const Plan& plan, bool on_main)
    : plan_(plan),
      active_(on_main && (plan.config.checkpoint.enabled || plan.config.report.jsonl || plan.config.report.csv)) {
  if (!active_) {
    return;
  }
  FileSystem& fs = real_file_system();
  const std::filesystem::path directory = run_directory(plan.config);
  fs.create_directories(directory);
  write_file(fs, directory / "config.toml", config_toml(plan.config));
  events_ = std::make_unique<EventLog>(fs, directory / "events.jsonl");
}

RunFiles::~RunFiles() = default;

void RunFiles::open_metrics(std::int64_t resume_step) {
  if (!active_) {
    return;
  }
  const std::filesystem::path directory = run_directory(plan_.config);
  if (plan_.config.report.jsonl) {
    sinks_.push_back(jsonl_sink(real_file_system(), directory / "metrics.jsonl", resume_step));
  }
  if (plan_.config.report.csv) {
    sinks_.push_back(csv_sink(real_file_system(), directory / "metrics.csv", resume_step));
  }
}

void RunFiles::event(std::string_view name, const EventFields& fields) {
  if (events_) {
    events_->write(name, fields);
  }
}

void RunFiles::metrics(std::int64_t step, std::span<const Metric> metrics) {
  for (const auto& sink : sinks_) {
    sink->write(step, metrics);
  }
}

}  // namespace lockstep
