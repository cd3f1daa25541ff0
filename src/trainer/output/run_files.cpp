#include "trainer/output/run_files.h"

#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/base/log.h>
#include <lockstep/base/variables.h>
#include <lockstep/config/config_io.h>

#include "base/paths.h"
#include "base/report_file.h"
#include "base/run_files.h"
#include "base/text.h"
#include "config/field_value.h"
#include "config/without_files.h"
#include "environment/own_variables.h"

namespace lockstep {
namespace {

std::vector<RunSetting> settings_of(const Plan& plan) {
  std::vector<RunSetting> settings;
  const TrainConfig asked = asked_config(plan);
  visit_fields(asked, [&settings]<class T>(const FieldInfo& info, const T& value) {
    settings.push_back({.name = std::string(info.name), .text = to_text(value), .is_text = kIsText<T>});
  });
  for (const ProgramValue& value : plan.facts.program_values) {
    settings.push_back({.name = value.name, .text = printable(value.text), .is_text = value.is_text});
  }
  return settings;
}

std::string settings_toml(const Plan& plan) {
  return config_toml(asked_config(plan)) + program_toml(plan.facts.program_values);
}

/// A start of the run has written its settings: at once after this event, which a launcher does not write.
bool has_started(FileSystem& fs, const std::filesystem::path& directory) {
  const std::filesystem::path events = directory / kEventsName;
  try {
    return fs.exists(events) && read_file(fs, events).find("\"event\":\"start\"") != std::string::npos;
  } catch (const IoError& error) {
    if (error.number() != 0) {
      throw;
    }
    return true;  // only a long training has so many events
  }
}

/// An earlier start, which failed, has kept it.
bool is_kept(FileSystem& fs, const std::filesystem::path& file, const std::string& text) {
  for (int number = 1;; ++number) {
    const std::filesystem::path copy = fmt::format("{}.{}", file.string(), number);
    if (!fs.exists(copy)) {
      return false;
    }
    if (read_file(fs, follow_links(copy)) == text) {
      return true;
    }
  }
}

/// A user may start a run with a file of this name, which the run replaces later. It stays until then, so that a start
/// that fails can be repeated.
void keep_settings_of_user(FileSystem& fs, const std::filesystem::path& directory, const std::string& of_run) {
  const std::filesystem::path file = directory / kSettingsName;
  try {
    const std::string text = fs.exists(file) ? read_file(fs, follow_links(file)) : of_run;
    if (text != of_run && !has_started(fs, directory) && !is_kept(fs, file, text)) {
      set_aside(fs, file, fmt::format("{} was there before the run", file.string()));
      write_file(fs, file, text);
    }
  } catch (const IoError& error) {
    log_warning(fmt::format("{}; the run replaces it", error.what()));
  }
}

/// If this rank fails, our launcher lets the command finish.
Variables environment_of_command() {
  auto values = read_environment().all();
  values[own_variables::kMayFinish] = "1";
  return Variables(std::move(values));
}

}  // namespace

RunFiles::RunFiles(const Plan& plan, std::filesystem::path directory, bool on_main)
    : plan_(plan), directory_(std::move(directory)), on_main_(on_main), active_(on_main && writes_files(plan.config)) {
  if (!active_) {
    return;
  }
  FileSystem& fs = real_file_system();
  fs.create_directories(directory_);
  keep_settings_of_user(fs, directory_, settings_toml(plan_));
  events_ = std::make_unique<EventLog>(fs, directory_ / kEventsName);
}

RunFiles::~RunFiles() = default;

void RunFiles::begin(std::int64_t resume_step, std::span<const MetricSinkFactory> own) {
  if (active_) {
    open_files(resume_step);
  }
  if (!on_main_) {
    return;
  }
  for (const MetricSinkFactory& make : own) {
    if (auto sink = make(resume_step)) {
      own_sinks_.push_back(std::move(sink));
    }
  }
}

void RunFiles::open_files(std::int64_t resume_step) {
  FileSystem& fs = real_file_system();
  const std::string config = settings_toml(plan_);
  try {
    remove_leftovers(fs, directory_ / kSettingsName);
    write_file(fs, directory_ / kSettingsName, config);
  } catch (const IoError& error) {  // a missing report does not end the run
    log_warning(fmt::format("{}; the run goes on without it", error.what()));
  }
  if (plan_.config.report.jsonl) {
    sinks_.push_back(jsonl_sink(fs, directory_ / kMetricLinesName, resume_step));
  }
  if (plan_.config.report.csv) {
    sinks_.push_back(csv_sink(fs, directory_ / kMetricTableName, resume_step));
  }
  if (plan_.config.report.tensorboard) {
    sinks_.push_back(tensorboard_sink(fs, directory_, resume_step, fmt::format("```\n{}```\n", config)));
  }
  if (plan_.config.report.prometheus) {
    sinks_.push_back(prometheus_sink(fs, directory_ / "metrics.prom", directory_.filename().string()));
  }
  if (const std::string& command = plan_.config.report.command; !command.empty()) {
    sinks_.push_back(command_sink(command, environment_of_command(), directory_, resume_step, settings_of(plan_)));
  }
  if (plan_.config.report.step_times) {
    step_times_ = csv_sink(fs, directory_ / "step_times.csv", resume_step);
  }
}

void RunFiles::event(std::string_view name, const EventFields& fields) {
  if (events_) {
    events_->write(name, fields);
  }
}

// The files of a run warn about their own errors; a sink of the program may throw.
void RunFiles::for_each_sink(const std::function<void(MetricSink&)>& tell) {
  for (const auto& sink : sinks_) {
    tell(*sink);
  }
  std::erase_if(own_sinks_, [&](const auto& sink) {
    try {
      tell(*sink);
      return false;
    } catch (const IoError& error) {  // a missing report does not end the run
      log_warning(fmt::format("{}; the sink of the program gets no more rows", error.what()));
      return true;
    }
  });
}

void RunFiles::write(std::int64_t step, std::span<const MetricValue> metrics) {
  for_each_sink([&](MetricSink& sink) { sink.write(step, metrics); });
}

void RunFiles::write_histogram(std::int64_t step, std::string_view name, const Histogram& histogram) {
  for_each_sink([&](MetricSink& sink) { sink.write_histogram(step, name, histogram); });
}

void RunFiles::write_text(std::int64_t step, std::string_view name, std::string_view text) {
  for_each_sink([&](MetricSink& sink) { sink.write_text(step, name, text); });
}

void RunFiles::write_image(std::int64_t step, std::string_view name, const Image& image) {
  for_each_sink([&](MetricSink& sink) { sink.write_image(step, name, image); });
}

void RunFiles::write_end(std::span<const MetricValue> metrics) {
  const std::vector<RunSetting> settings = settings_of(plan_);
  for_each_sink([&](MetricSink& sink) { sink.finish(settings, metrics); });
}

void RunFiles::step_times(std::int64_t step, std::span<const MetricValue> row) {
  if (step_times_) {
    step_times_->write(step, row);
  }
}

}  // namespace lockstep
