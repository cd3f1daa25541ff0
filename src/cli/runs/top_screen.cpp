#include "cli/runs/top_screen.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/columns.h"
#include "base/mapped.h"
#include "base/text.h"
#include "base/wall_clock.h"
#include "report/console_names.h"

namespace lockstep {
namespace {

constexpr std::size_t kNameWidth = 16;  // at least
constexpr std::size_t kValueWidth = 12;

/// The begin of the attempt that trains now, or trained last.
double begin_of_attempt(const RunData& run) {
  const auto start =
      std::find_if(run.events.rbegin(), run.events.rend(), [](const RunEvent& e) { return e.name == "start"; });
  return start == run.events.rend() ? run.started : start->time;
}

std::string progress_line(const RunData& run, double now) {
  std::vector<std::string> parts{fmt::format("step {}", run.last_step)};
  if (const std::int64_t total = run.planned_steps; total > 0) {
    parts.back() += fmt::format(" of {} ({:.0f} %)", total,
                                100.0 * static_cast<double>(run.last_step) / static_cast<double>(total));
  }
  if (run.epoch) {
    parts.push_back("epoch " + short_number(*run.epoch));
  }
  if (run.step_s > 0) {
    const double rate = 1 / run.step_s;
    parts.push_back((rate < 1000 ? fmt::format("{:.3g}", rate) : with_commas(rate)) + " steps/s");
  }
  if (const MetricSeries* rate = run.metrics.find("samples_per_s"); rate != nullptr && rate->values.back() > 0) {
    parts.push_back(with_commas(rate->values.back()) + " samples/s");
  }
  if (const double begin = begin_of_attempt(run); begin > 0) {
    const double end = run.state == RunState::running ? now : run.last_activity;
    parts.push_back("time " + human_duration(std::max(0.0, end - begin)));
  }
  return join(parts, "   ");
}

std::string checkpoint_line(const RunCheckpointFacts& checkpoints) {
  if (checkpoints.steps.empty()) {
    return "checkpoint: none yet";
  }
  std::string text = fmt::format("checkpoint: step {}", checkpoints.steps.back());
  if (checkpoints.best) {
    text += fmt::format(", best {} {:.5g} at step {}", printable(checkpoints.monitor), checkpoints.best_value,
                        *checkpoints.best);
  }
  return text + fmt::format(", {} in {}", human_bytes(checkpoints.bytes),
                            counted(std::ssize(checkpoints.steps), "checkpoint"));
}

std::string event_line(const RunEvent& event) {
  std::string text = fmt::format("{}  {}", utc_clock(event.time), printable(event.name));
  if (event.step) {
    text += fmt::format("  step {}", *event.step);
  }
  for (const char* name : {"why", "what"}) {
    if (const auto found = event.fields.find(name); found != event.fields.end() && found->is_string()) {
      text += "  " + printable(first_line(found->get<std::string>()));
    }
  }
  return text;
}

/// The lines of a text that begins in column `indent`.
std::vector<std::string> lines_of(const std::string& text, std::size_t indent, ScreenSize size) {
  const std::string all =
      size.breaks_lines ? wrap(text, indent, static_cast<std::size_t>(std::max(size.width, 0))) : text;
  return split(std::string(indent, ' ') + all, '\n');
}

void append(std::vector<std::string>& lines, const std::vector<std::string>& more) {
  lines.insert(lines.end(), more.begin(), more.end());
}

/// The last events, in at most a third of the screen.
std::vector<std::string> event_lines(const RunData& run, ScreenSize size) {
  constexpr std::size_t kIndent = 2;
  constexpr int kMostEvents = 5;
  const auto most_lines = static_cast<std::size_t>(std::max(size.height / 3, 1));
  std::vector<std::string> lines;
  int events = 0;
  for (auto event = run.events.rbegin(); event != run.events.rend() && events < kMostEvents; ++event, ++events) {
    const auto more = lines_of(event_line(*event), kIndent, size);
    if (!lines.empty() && lines.size() + more.size() > most_lines) {
      break;
    }
    lines.insert(lines.begin(), more.begin(), more.end());
  }
  return lines;
}

/// So wide that no name is cut, but at most half of the screen.
std::size_t name_width(std::span<const MetricSeries* const> metrics, ScreenSize size) {
  std::size_t longest = kNameWidth;
  for (const MetricSeries* series : metrics) {
    longest = std::max(longest, columns_of(printable(series->name)));
  }
  const auto half = static_cast<std::size_t>(std::max(size.width / 2, 0));
  return size.breaks_lines ? std::min(longest, std::max(half, kNameWidth)) : longest;
}

struct ShownMetrics {
  std::vector<const MetricSeries*> rows{};
  std::size_t others = 0;  // without a row
};

/// loss and val_loss first, then the others of the console in the order of the file.
ShownMetrics metrics_to_show(const MetricRows& metrics) {
  ShownMetrics shown;
  for (const char* first : {"loss", "val_loss"}) {
    if (const MetricSeries* series = metrics.find(first)) {
      shown.rows.push_back(series);
    }
  }
  const auto for_console = names_for_console(mapped(metrics.series, &MetricSeries::name));
  for (const MetricSeries& series : metrics.series) {
    if (series.name == "loss" || series.name == "val_loss" || series.name == "epoch" ||
        series.name == "samples_per_s") {
      continue;
    }
    if (for_console.contains(series.name)) {
      shown.rows.push_back(&series);
    } else {
      ++shown.others;
    }
  }
  return shown;
}

}  // namespace

std::string sparkline(std::span<const double> values, int width, ScreenStyle style) {
  static constexpr std::array<const char*, 8> kBlocks{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr std::array<const char*, 8> kPlain{"_", ".", ",", "-", "=", "+", "*", "#"};
  const auto& levels = style.unicode ? kBlocks : kPlain;
  const std::size_t count = std::min(values.size(), static_cast<std::size_t>(std::max(width, 0)));
  const auto shown = values.last(count);
  double least = std::numeric_limits<double>::infinity();
  double most = -least;
  for (const double value : shown) {
    if (std::isfinite(value)) {
      least = std::min(least, value);
      most = std::max(most, value);
    }
  }
  std::string text;
  for (const double value : shown) {
    if (!std::isfinite(value)) {
      text += '!';
      continue;
    }
    const double part = most > least ? (value / 2 - least / 2) / (most / 2 - least / 2) : 0;
    text += levels[static_cast<std::size_t>(std::clamp(std::lround(part * 7), 0L, 7L))];
  }
  return text;
}

std::vector<std::string> top_screen(const RunData& run, double now, ScreenSize size, ScreenStyle style) {
  std::vector<std::string> lines;
  std::string state(to_string(run.state));
  if (run.state == RunState::running && run.last_activity > 0) {
    state += fmt::format(", last activity {} ago", rough_duration(now - run.last_activity));
  } else if (run.why.starts_with(state)) {
    state = printable(first_line(run.why));
  } else if (!run.why.empty()) {
    state += ", " + printable(first_line(run.why));
  }
  append(lines, lines_of(printable(run.name) + ": " + state, 0, size));
  append(lines, lines_of(progress_line(run, now), 0, size));
  append(lines, lines_of(checkpoint_line(run.checkpoints), 0, size));
  for (const std::string& note : run.notes) {
    append(lines, lines_of("note: " + printable(first_line(note)), 0, size));
  }

  const std::vector<std::string> events = event_lines(run, size);
  const std::size_t below = events.empty() ? 0 : events.size() + 2;  // their title and the empty line before it
  const std::size_t height = static_cast<std::size_t>(std::max(size.height, 0));
  auto [metrics, others] = metrics_to_show(run.metrics);
  const std::size_t used = lines.size() + 1 + below;
  const std::size_t room = std::max<std::size_t>(height > used ? height - used : 0, 1);
  if (metrics.size() + (others > 0 ? 1 : 0) > room) {
    const std::size_t fitting = std::min(metrics.size(), room - 1);
    others += metrics.size() - fitting;
    metrics.resize(fitting);
  }
  lines.emplace_back();
  const std::size_t names = name_width(metrics, size);
  for (const MetricSeries* series : metrics) {
    const std::string head = padded(fitted(printable(series->name), names), names) + " " +
                             padded(five_digits(series->values.back()), kValueWidth);
    const int left = size.width - static_cast<int>(names + kValueWidth + 2);
    lines.push_back(head + " " + sparkline(series->values, left, style));
  }
  if (others > 0) {
    lines.push_back(fmt::format("... and {}", counted(static_cast<std::int64_t>(others), "other metric")));
  }
  if (!events.empty()) {
    lines.emplace_back();
    lines.emplace_back("events (UTC)");
    append(lines, events);
  }
  lines.resize(std::min(lines.size(), std::max<std::size_t>(height, 1)));
  if (size.breaks_lines) {  // a word can be longer than a line
    for (std::string& line : lines) {
      line = fitted(line, static_cast<std::size_t>(std::max(size.width, 0)));
    }
  }
  return lines;
}

// Each line is erased before it is written. After a full line the cursor of many terminals stays on its last column,
// and erasing would remove the character there.
std::string drawing(const std::vector<std::string>& lines, ScreenSize size) {
  std::string text = "\x1b[H";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    text += (i > 0 ? "\r\n\x1b[K" : "\x1b[K") + lines[i];
  }
  return std::ssize(lines) < size.height ? text + "\r\n\x1b[J" : text;
}

}  // namespace lockstep
