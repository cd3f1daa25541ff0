#include "trainer/output/run_reports.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/duration.h"
#include "base/mapped.h"
#include "base/text.h"
#include "report/console_names.h"
#include "report/metric_file.h"
#include "trainer/output/metric_names.h"
#include "world/agreement.h"

namespace lockstep {
namespace {

constexpr std::string_view kEpochNumber = "epoch";

}  // namespace

void check_same_on_all_ranks(const Metrics& metrics, World& world) {
  std::string text;
  for (const auto& [name, value] : metrics) {
    // The sign of NaN depends on how it came about.
    text += std::isnan(value) ? fmt::format("{} nan\n", printable(name))
                              : fmt::format("{} {:.17g}\n", printable(name), value);
  }
  if (const auto found = find_disagreement(text, world)) {
    throw_about_rank(found->rank, world,
                     CommError(fmt::format("rank {} logs other metrics than the others: '{}', {} '{}'", found->rank,
                                           found->found, found->others, found->expected),
                               "log the same value on every rank; World::all_reduce makes one value of several",
                               ExitCode::disagree));
  }
}

void RunReports::set_position(const TrainState& state, const EpochPlace& place) {
  if (place.number != epoch_) {
    epoch_ = place.number;
    now_.phase = fmt::format("epoch {}", std::max(epoch_, std::int64_t{1}));
  }
  now_.done = place.steps;
  now_.step = state.step;
  now_.samples = state.samples;
}

void RunReports::show_step(const TrainState& state, const EpochPlace& place, std::optional<std::int64_t> total) {
  set_position(state, place);
  now_.total = total;
  progress_.update(now_);
}

void RunReports::show_validation(std::int64_t steps, std::optional<std::int64_t> total) {
  progress_.update({.phase = "validation", .done = steps, .total = total, .step = now_.step, .samples = now_.samples});
}

void RunReports::begin_window(std::int64_t samples) {
  window_began_ = Clock::now();
  window_samples_ = samples;
}

void RunReports::add_speed(Metrics& metrics, std::int64_t samples, bool may_decide) {
  double seconds = seconds_since(window_began_);
  if (may_decide) {
    seconds = parse_double(world_.broadcast_bytes(fmt::format("{}", seconds))).value_or(0);
  }
  if (seconds > 0 && samples > window_samples_) {
    metrics.emplace_back(kSpeed, static_cast<double>(samples - window_samples_) / seconds);
  }
  begin_window(samples);
}

void RunReports::write(Stage stage, const Metrics& metrics, bool may_differ) {
  if (may_differ) {
    check_same_on_all_ranks(metrics, world_);
  }
  std::vector<MetricValue> row;
  std::vector<MetricValue> line;  // the console shows epoch and speed separately
  const auto for_console = names_for_console(mapped(metrics, &Metrics::value_type::first));
  for (const auto& [name, value] : metrics) {
    row.push_back({.name = name, .value = value});
    of_step_.emplace_back(name, value);
    if (name != kEpochNumber && name != kSpeed) {
      if (for_console.contains(name)) {
        line.push_back(row.back());
      }
      set_metric(last_, name, value);
    }
  }
  if (stage != Stage::report) {
    row.push_back({.name = kEpochNumber, .value = static_cast<double>(epoch_)});
  }
  require_distinct(row);  // on every rank
  if (stage == Stage::report) {
    progress_.report(now_, line);
  } else {
    progress_.keep(now_, line);
  }
  files_.write(now_.step, row);
}

Metrics RunReports::last() const {
  Metrics all = last_;
  for (const auto& [name, value] : restored_) {
    if (name != kEpochNumber && name != kSpeed && find_metric(all, name) == nullptr) {
      all.emplace_back(name, value);
    }
  }
  return all;
}

}  // namespace lockstep
