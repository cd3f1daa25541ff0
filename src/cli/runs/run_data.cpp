#include "cli/runs/run_data.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/storage/checkpoint_dir.h>

#include "base/paths.h"
#include "base/run_files.h"
#include "base/text.h"
#include "base/wall_clock.h"
#include "config/config_file.h"
#include "report/metric_file.h"
#include "storage/manifest.h"
#include "storage/names.h"
#include "storage/run_directory.h"
#include "storage/run_record.h"

namespace lockstep {
namespace {

using Path = std::filesystem::path;

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : dump_json(value); }

std::string text_of(const FileValue& value) {
  return std::visit(
      [](const auto& content) -> std::string {
        using Content = std::decay_t<decltype(content)>;
        if constexpr (std::is_same_v<Content, UnusableValue>) {
          return content.description;
        } else if constexpr (std::is_same_v<Content, std::vector<int>>) {
          return format_ranges(content);
        } else {
          return to_text(content);
        }
      },
      value);
}

std::string value_of(const Texts& texts, std::string_view name) {
  const auto found = std::ranges::find(texts, name, &Texts::value_type::first);
  return found == texts.end() ? std::string() : found->second;
}

bool has(const Texts& texts, std::string_view name) {
  return std::ranges::find(texts, name, &Texts::value_type::first) != texts.end();
}

// A run that was started several times has the value of its last start.
void add_latest(RunData& run, const char* title, const Json& fields, const char* key) {
  if (const auto found = fields.find(key); found != fields.end()) {
    std::erase_if(run.environment, [&](const auto& entry) { return entry.first == title; });
    run.environment.emplace_back(title, text_of(*found));
  }
}

RunEvent parse_event(std::string_view line) {
  Json fields = parse_json(line);
  RunEvent event{.time = parse_utc_time(fields.at("time").get<std::string>()).value(),
                 .name = fields.at("event").get<std::string>()};
  // A rank that failed before its first step has written -1.
  if (const auto step = fields.find("step"); step != fields.end() && step->is_number_unsigned()) {
    event.step = step->get<std::int64_t>();
  }
  for (const char* known : {"v", "time", "event", "step"}) {
    fields.erase(known);
  }
  event.fields = std::move(fields);
  return event;
}

/// A file that cannot be read, such as a link or one without permission, becomes a note.
template <class Read>
void read_or_note(RunData& run, const Read& read) {
  try {
    read();
  } catch (const IoError& error) {
    run.notes.emplace_back(error.what());
  }
}

void note_damaged(RunData& run, const char* where, std::int64_t lines) {
  if (lines > 0) {
    run.notes.push_back(
        fmt::format("{}: {} damaged and left out", where, lines == 1 ? "a line is" : counted(lines, "line") + " are"));
  }
}

void read_events(FileSystem& fs, RunData& run) {
  const std::string text = read_metric_file(fs, run.directory / kEventsName);
  std::int64_t damaged = 0;
  for_each_line(text, [&](std::string_view line) {  // an incomplete one is being written now
    try {
      if (!line.empty()) {
        run.events.push_back(parse_event(line));
      }
    } catch (const std::exception&) {
      ++damaged;
    }
  });
  note_damaged(run, kEventsName, damaged);
}

std::string text_in(const RunEvent& event, const char* field) {
  const auto found = event.fields.find(field);
  return found == event.fields.end() ? std::string() : text_of(*found);
}

/// `last`: a failure, or the begin of an attempt after which nothing was written.
void judge_failed(RunData& run, const RunEvent& last) {
  if (last.name != "failure") {
    run.why = "it ended without a last event, as after SIGKILL or a power loss";
  } else if (was_written_later(run.directory / kRunRecordName, run.directory / kEventsName)) {
    return;  // by a later start, of a program with a loop by hand: it leaves no event
  } else {
    run.why = text_in(last, "what");
  }
  run.state = RunState::failed;
}

/// The last events decide, whoever wrote them: rank 0 or the supervisor. A start that failed before it trained
/// anything, such as one with other data, has a failure without a step. It changes nothing of a run that had ended.
void judge(RunData& run) {
  if (is_run_in_use(run.directory)) {
    run.state = RunState::running;
    return;
  }
  const RunEvent* failed_start = nullptr;  // the last one
  for (auto event = run.events.rbegin(); event != run.events.rend(); ++event) {
    if (event->name == "end") {
      // A stop that the program itself asked for is an end like others.
      const auto stopped = event->fields.find("stopped");
      run.state = stopped != event->fields.end() && *stopped == true ? RunState::stopped : RunState::finished;
      run.why = text_in(*event, "why");
      if (failed_start != nullptr) {
        run.notes.push_back(fmt::format("a later start failed: {}", first_line(text_in(*failed_start, "what"))));
      }
      return;
    }
    if (event->name == "failure" && !event->step) {
      failed_start = failed_start == nullptr ? &*event : failed_start;
    } else if (event->name == "failure" || event->name == "start" ||
               (event->name == "restart" && failed_start == nullptr)) {
      judge_failed(run, failed_start == nullptr ? *event : *failed_start);
      return;
    }
  }
  if (failed_start != nullptr) {
    judge_failed(run, *failed_start);
  }
}

void read_checkpoints(FileSystem& fs, RunData& run) {
  const CheckpointDir directory(fs, run.directory / kCheckpointsName);
  RunCheckpointFacts& facts = run.checkpoints;
  facts.monitor = value_of(run.settings, "checkpoint.monitor");
  const bool is_largest = value_of(run.settings, "checkpoint.mode") == "max";
  Json newest;
  for (const std::int64_t step : directory.steps()) {
    const CheckpointFiles files(fs, directory.path(step), step);
    Manifest manifest;
    try {
      manifest = files.manifest();
    } catch (const std::exception& error) {
      if (!fs.exists(directory.path(step))) {
        continue;  // the run has deleted it meanwhile
      }
      run.notes.push_back(fmt::format("checkpoint of step {}: {}", step, error.what()));
      continue;
    }
    facts.steps.push_back(step);
    facts.bytes += size_of(manifest);
    newest = read_state(files);
    const auto metric = newest.find(metric_key(facts.monitor));
    const auto value = metric != newest.end() && metric->is_string() && !facts.monitor.empty()
                           ? parse_double(metric->get<std::string>())
                           : std::nullopt;
    // Among equals the first, as CheckpointStore keeps it.
    if (value && (!facts.best || (is_largest ? *value > facts.best_value : *value < facts.best_value))) {
      facts.best = step;
      facts.best_value = *value;
    }
  }
  for (const auto& [key, value] : newest.items()) {
    if (key.starts_with(kProgramKeys) && !has(run.settings, key)) {
      run.settings.emplace_back(key, text_of(value));
    }
  }
  const std::vector<std::pair<const char*, const char*>> shown{{kWorldSizeKey, "ranks"},
                                                               {kThreadsKey, "threads per rank"},
                                                               {"position.dataset_size", "samples of the data"},
                                                               {kSamplesKey, "samples seen, saved"},
                                                               {kTotalStepsKey, "planned steps"}};
  for (const auto& [key, title] : shown) {
    if (const auto found = newest.find(key); found != newest.end()) {
      run.environment.emplace_back(title, text_of(*found));
    }
  }
  if (const auto found = newest.find(kTotalStepsKey); found != newest.end()) {
    run.planned_steps = parse_int(text_of(*found)).value_or(0);
  }
}

void read_record(FileSystem& fs, RunData& run) {
  const Path file = run.directory / kRunRecordName;
  if (!fs.exists(file)) {
    return;
  }
  try {
    const RunRecord record = parse_run_record(read_file(fs, file), file.string());
    run.environment.emplace_back("program", record.program);
    run.environment.emplace_back("run id", record.id);
    run.environment.emplace_back("launches", std::to_string(record.launches));
    if (!record.launch.job.empty()) {
      run.environment.emplace_back("job", record.launch.job);
    }
  } catch (const CheckpointError& error) {
    run.notes.emplace_back(error.what());
  }
}

void read_settings(FileSystem& fs, RunData& run) {
  const Path file = run.directory / kSettingsName;
  if (!fs.exists(file)) {
    return;
  }
  try {
    for (const FileSetting& setting : parse_config_toml(read_file(fs, file), file.string())) {
      run.settings.emplace_back(setting.name, text_of(setting.value));
    }
  } catch (const ConfigError& error) {
    run.notes.emplace_back(error.what());
  }
}

void read_metrics(FileSystem& fs, RunData& run, std::int64_t last_bytes) {
  auto rows = read_metric_rows(fs, run.directory, last_bytes);
  if (!rows) {
    run.notes.emplace_back("no metrics.jsonl and no metrics.csv: there are no curves");
    return;
  }
  run.metrics = *std::move(rows);
  if (run.metrics.cut_off && run.state != RunState::running) {
    run.notes.emplace_back("metrics: the last line is incomplete and left out");
  }
  note_damaged(run, "metrics", run.metrics.damaged);
  if (const MetricSeries* epochs = run.metrics.find("epoch"); epochs != nullptr && !epochs->values.empty()) {
    run.epoch = epochs->values.back();
  }
}

/// nullopt: the event does not say it.
std::optional<std::int64_t> total_steps_of(const RunEvent& event) {
  const auto planned = event.fields.find("total_steps");
  return planned != event.fields.end() && planned->is_number_integer() ? std::optional(planned->get<std::int64_t>())
                                                                       : std::nullopt;
}

/// The steps and times of the whole run, once all of its files are read.
void follow_attempts(RunData& run) {
  std::int64_t step_of_events = 0;
  double last_start = 0;
  const std::int64_t planned_as_saved = run.planned_steps;
  run.last_activity = run.metrics.last_time;
  for (const RunEvent& event : run.events) {
    run.last_activity = std::max(run.last_activity, event.time);
    if (event.name == "start") {
      add_latest(run, "launcher", event.fields, "launch");
      add_latest(run, "build", event.fields, "build");
      step_of_events = 0;  // what an attempt has not saved is lost
      last_start = event.time;
      run.planned_steps = total_steps_of(event).value_or(planned_as_saved);
    } else if (event.name == "resume") {
      run.planned_steps = total_steps_of(event).value_or(run.planned_steps);
    } else if (event.name == "save" && planned_as_saved > 0) {
      run.planned_steps = planned_as_saved;
    }
    step_of_events = std::max(step_of_events, event.step.value_or(0));
  }
  run.last_step = std::max(run.metrics.last_step, step_of_events);
  if (!run.checkpoints.steps.empty()) {
    run.last_step = std::max(run.last_step, run.checkpoints.steps.back());
  }
  if (run.last_step > run.planned_steps) {
    run.planned_steps = 0;  // this training is longer than the one that was saved
  }
  run.step_s = run.metrics.step_seconds(last_start);
  if (!run.events.empty()) {
    run.started = run.events.front().time;
  }
}

}  // namespace

std::string_view to_string(RunState state) noexcept {
  switch (state) {
    case RunState::running:
      return "running";
    case RunState::finished:
      return "finished";
    case RunState::stopped:
      return "stopped";
    case RunState::failed:
      return "failed";
    case RunState::unknown:
      break;
  }
  return "unknown";
}

Json read_state(const CheckpointFiles& files) {
  try {
    return parse_json(files.read(std::string(kStateName), kMaxStateBytes));
  } catch (const std::exception&) {
    return Json::object();
  }
}

bool is_run(FileSystem& fs, const Path& directory) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(directory, ignored)) {
    return false;
  }
  return std::ranges::any_of(std::vector{kRunRecordName, kEventsName, kMetricLinesName, kMetricTableName},
                             [&](const char* name) { return fs.exists(directory / name); }) ||
         !CheckpointDir(fs, directory / kCheckpointsName).steps().empty();
}

void refuse_folder_of_runs(FileSystem& fs, const Path& directory) {
  constexpr std::size_t kMostNames = 5;
  std::vector<std::string> runs;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    try {
      if (entry.is_directory(ignored) && is_run(fs, entry.path())) {
        runs.push_back(entry.path().filename().string());
      }
    } catch (const IoError&) {  // a directory of another user
    }
  }
  if (runs.empty()) {
    return;
  }
  std::ranges::sort(runs);
  const std::string first = (directory / runs.front()).string();
  const std::string count = counted(std::ssize(runs), "run");
  if (runs.size() > kMostNames) {
    runs.resize(kMostNames);
    runs.emplace_back("...");
  }
  throw ConfigError(fmt::format("{} is no run, but a directory of {}: {}", printable(directory.string()), count,
                                printable(join(runs, ", "))),
                    fmt::format("give one of them, such as {}; lockstep list {} shows them", printable(first),
                                printable(directory.string())));
}

void require_run(FileSystem& fs, const Path& directory) {
  if (!is_run(fs, directory)) {
    refuse_folder_of_runs(fs, directory);
    throw ConfigError(
        fmt::format("{} contains no run", printable(directory.string())),
        "give the directory of a run, such as runs/first; lockstep list shows the runs. A training that was "
        "started just now makes its directory within some seconds");
  }
}

RunData read_run(FileSystem& fs, const Path& directory, std::int64_t last_bytes) {
  require_run(fs, directory);
  RunData run{.directory = directory,
              .name = (std::filesystem::absolute(directory).lexically_normal() / "").parent_path().filename().string()};
  read_or_note(run, [&] { read_events(fs, run); });
  judge(run);
  read_or_note(run, [&] { read_record(fs, run); });
  read_or_note(run, [&] { read_settings(fs, run); });
  read_or_note(run, [&] { read_checkpoints(fs, run); });
  read_or_note(run, [&] { read_metrics(fs, run, last_bytes); });
  if (last_bytes == kWholeFile) {
    read_or_note(run, [&] { run.times = read_rank_times(fs, directory); });
  }
  follow_attempts(run);
  return run;
}

std::string event_text(const RunEvent& event) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : event.fields.items()) {
    std::string text = value.is_string()         ? value.get<std::string>()
                       : value.is_number_float() ? short_number(value.get<double>())
                                                 : dump_json(value);
    constexpr std::size_t kMost = 100;  // a rollback may leave out thousands of samples
    if (name == "samples" && text.size() > kMost) {
      text = text.substr(0, text.find_last_of(' ', kMost)) + " ...";
    }
    const bool is_sentence = name == "why" || name == "what";
    parts.push_back(printable(is_sentence ? text : fmt::format("{} {}", name, text)));
  }
  return join(parts, ", ");
}

std::string rough_duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::max(0.0, seconds));
  if (whole < 60) {
    return fmt::format("{} s", whole);
  }
  if (whole < 3600) {
    return fmt::format("{} min", whole / 60);
  }
  return whole < 48 * 3600 ? fmt::format("{} h", whole / 3600) : fmt::format("{} d", whole / 86400);
}

}  // namespace lockstep
