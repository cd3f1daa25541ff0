#include "cli/runs/report_page.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/config/config_io.h>
#include <lockstep/version.h>

#include "base/assertion.h"
#include "base/mapped.h"
#include "base/metric_prefixes.h"
#include "base/text.h"
#include "base/wall_clock.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostPoints = 2000;  // per curve: more than a screen has columns
constexpr std::size_t kMostSaves = 200;    // events of a run
constexpr std::size_t kMostOthers = 800;

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : printable(text)) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

/// JSON inside of a script element: nothing in it may end the element.
std::string escaped_json(const Json& value) {
  std::string safe;
  for (const char c : dump_json(value)) {
    if (c == '<' || c == '>' || c == '&') {
      safe += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      safe += c;
    }
  }
  return safe;
}

/// Seven digits are more than a screen can show, and half the size.
double shortened(double value) { return parse_double(fmt::format("{:.7g}", value)).value_or(value); }

/// Rows have a cell for each title; the first one names the row. All texts are escaped.
std::string table(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows) {
  std::string text = "<table class=\"titled\"><thead><tr>";
  for (const std::string& title : titles) {
    text += fmt::format("<th scope=\"col\">{}</th>", title);
  }
  text += "</tr></thead><tbody>\n";
  for (const auto& cells : rows) {
    text += fmt::format("<tr><th scope=\"row\">{}</th>", cells.front());
    for (std::size_t i = 1; i < cells.size(); ++i) {
      text += fmt::format("<td data-title=\"{}\">{}</td>", titles[i], cells[i]);
    }
    text += "</tr>\n";
  }
  return text + "</tbody></table>";
}

std::string overview(std::span<const RunData> runs) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunData& run = runs[i];
    const MetricSeries* loss = run.metrics.find("loss");
    const auto& checkpoints = run.checkpoints;
    rows.push_back(
        {fmt::format("<span class=\"swatch\" style=\"background:var(--run{})\"></span>{}", i % 7, escaped(run.name)),
         fmt::format("<span class=\"state {0}\">{0}</span>", to_string(run.state)),
         with_commas(static_cast<double>(run.last_step)), run.epoch ? short_number(*run.epoch) : "-",
         loss != nullptr ? short_number(loss->values.back()) : "-",
         checkpoints.best ? escaped(fmt::format("{} {} at step {}", checkpoints.monitor,
                                                short_number(checkpoints.best_value), *checkpoints.best))
                          : "-",
         run.started > 0 ? utc_minute(run.started) : "-", run.last_activity > 0 ? utc_minute(run.last_activity) : "-",
         checkpoints.steps.empty() ? "-"
                                   : fmt::format("{}, {}", checkpoints.steps.size(), human_bytes(checkpoints.bytes))});
  }
  return table({"run", "state", "step", "epoch", "loss", "best", "begin", "last activity", "checkpoints"}, rows);
}

std::string notes(std::span<const RunData> runs) {
  std::string text;
  for (const RunData& run : runs) {
    const bool is_news = run.state == RunState::failed || run.state == RunState::stopped;
    if (is_news && !run.why.empty()) {
      text += fmt::format("<li>{}: {}</li>\n", escaped(run.name), escaped(first_line(run.why)));
    }
    for (const std::string& note : run.notes) {
      text += fmt::format("<li>{}: {}</li>\n", escaped(run.name), escaped(note));
    }
  }
  return text.empty() ? text : "<ul class=\"notes\">\n" + text + "</ul>";
}

/// Curves that share a chart: a metric of the training, and the same one of the validation.
struct Group {
  std::string title{};
  std::vector<std::string> series{};
};

std::vector<Group> groups_of(std::span<const RunData> runs) {
  std::vector<std::string> names{"loss", "lr", "grad_norm", "samples_per_s"};
  std::set<std::string> present;
  for (const RunData& run : runs) {
    for (const MetricSeries& series : run.metrics.series) {
      names.push_back(series.name);
      present.insert(series.name);
    }
  }
  std::set<std::string> done;
  std::vector<Group> groups;
  for (const std::string& name : names) {
    const bool is_validation = name.starts_with(kValidationPrefix);
    const std::string title = is_validation ? name.substr(kValidationPrefix.size()) : name;
    const std::string validation = std::string(kValidationPrefix) + title;
    const bool has_training = present.contains(title);
    if ((!has_training && !present.contains(validation)) || !done.insert(title).second) {
      continue;
    }
    Group group{.title = has_training ? title : validation};
    for (const std::string& metric : {title, validation}) {
      if (present.contains(metric)) {
        group.series.push_back(metric);
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

/// Readable without a script.
std::string values_table(std::span<const RunData> runs, std::span<const Group> groups) {
  if (groups.empty()) {
    return "No metric has been written yet.";
  }
  std::vector<std::vector<std::string>> rows;
  for (const Group& group : groups) {
    for (const std::string& metric : group.series) {
      for (const RunData& run : runs) {
        const MetricSeries* series = run.metrics.find(metric);
        if (series == nullptr) {
          continue;
        }
        std::vector<double> finite;
        std::ranges::copy_if(series->values, std::back_inserter(finite), [](double v) { return std::isfinite(v); });
        const std::string of_run = fmt::format(" <span class=\"soft\">{}</span>", escaped(run.name));
        rows.push_back({escaped(metric) + (runs.size() > 1 ? of_run : ""), short_number(series->values.back()),
                        with_commas(static_cast<double>(series->steps.back())),
                        finite.empty() ? "-" : short_number(std::ranges::min(finite)),
                        finite.empty() ? "-" : short_number(std::ranges::max(finite))});
      }
    }
  }
  return table({runs.size() > 1 ? "metric and run" : "metric", "last", "at step", "smallest", "largest"}, rows);
}

Json series_data(const MetricSeries& series) {
  const ThinSeries points = thin(series, kMostPoints);
  Json values = Json::array();
  for (const double value : points.values) {
    values.push_back(std::isnan(value) ? Json() : Json(shortened(value)));
  }
  Json gaps = Json::array();
  for (const auto& [step, value] : points.gaps) {
    gaps.push_back({step, short_number(value)});
  }
  return {{"s", points.steps}, {"v", std::move(values)}, {"g", std::move(gaps)}};
}

/// The begin or end of an attempt.
bool bounds_attempt(const RunEvent& event) {
  return event.name == "start" || event.name == "end" || event.name == "failure" || event.name == "restart";
}

/// All that bound an attempt, and the latest others; saves are many and say little.
Json events_data(const RunData& run, std::size_t& left_out) {
  std::size_t saves = 0;
  std::size_t others = 0;
  std::vector<Json> kept;
  for (auto event = run.events.rbegin(); event != run.events.rend(); ++event) {
    if (!bounds_attempt(*event) && (event->name == "save" ? saves++ >= kMostSaves : others++ >= kMostOthers)) {
      ++left_out;
      continue;
    }
    Json json{{"time", event->time}, {"name", printable(event->name)}, {"text", event_text(*event)}};
    if (event->step) {
      json["step"] = *event->step;
    }
    kept.push_back(std::move(json));
  }
  std::ranges::reverse(kept);
  return kept;
}

Json pairs(const Texts& texts) {
  Json all = Json::array();
  for (const auto& [name, value] : texts) {
    all.push_back({printable(name), printable(value)});
  }
  return all;
}

/// The settings in which the runs differ; of a single run, those that differ from lockstep's defaults.
Json differences(std::span<const RunData> runs) {
  auto columns = mapped(runs, &RunData::settings);
  if (runs.size() == 1) {
    columns.push_back(config_values(TrainConfig{}));
  }
  std::vector<std::string> names;
  std::vector<std::map<std::string, std::string>> tables;
  for (const Texts& column : columns) {
    tables.emplace_back(column.begin(), column.end());
    for (const auto& [name, value] : column) {
      if (std::ranges::find(names, name) == names.end()) {
        names.push_back(name);
      }
    }
  }
  Json rows = Json::array();
  std::erase(names, "run_name");  // the columns are named after it
  for (const std::string& name : names) {
    Json row{printable(name)};
    std::set<std::string> values;
    for (const auto& table : tables) {
      const auto found = table.find(name);
      const std::string value = found == table.end() ? "-" : printable(found->second);
      values.insert(value);
      row.push_back(value.empty() ? "(empty)" : value);
    }
    if (values.size() > 1 && (runs.size() > 1 || tables.front().contains(name))) {
      rows.push_back(std::move(row));
    }
  }
  const bool known = std::ranges::any_of(runs, [](const RunData& run) { return !run.settings.empty(); });
  const char* title =
      runs.size() > 1 ? "Settings in which the runs differ" : "Settings that differ from lockstep's defaults";
  return {{"title", known ? title : ""}, {"rows", std::move(rows)}};
}

std::string title_of(std::span<const RunData> runs) {
  const auto names = mapped(runs, &RunData::name);
  return escaped(names.size() <= 4 ? join(names, ", ")
                                   : fmt::format("{} and {} other runs", names[0], names.size() - 1));
}

}  // namespace

Json report_data(std::span<const RunData> runs) {
  Json all = Json::array();
  for (const RunData& run : runs) {
    Json metrics = Json::object();
    for (const MetricSeries& series : run.metrics.series) {
      metrics[series.name] = series_data(series);
    }
    Json times = Json::array();
    for (const RankTimes& rank : run.times) {
      Json seconds = Json::array();
      for (const auto& [name, value] : rank.seconds) {
        seconds.push_back({printable(name), shortened(value)});
      }
      times.push_back({{"rank", rank.rank}, {"seconds", std::move(seconds)}});
    }
    std::size_t left_out = 0;
    Json events = events_data(run, left_out);
    all.push_back({{"name", printable(run.name)},
                   {"lastActivity", run.last_activity},
                   {"metrics", std::move(metrics)},
                   {"events", std::move(events)},
                   {"eventsLeftOut", left_out},
                   {"times", std::move(times)},
                   {"settings", pairs(run.settings)},
                   {"environment", pairs(run.environment)}});
  }
  Json groups = Json::array();
  for (const Group& group : groups_of(runs)) {
    groups.push_back({{"title", group.title}, {"series", group.series}});
  }
  return {{"runs", std::move(all)}, {"groups", std::move(groups)}, {"differences", differences(runs)}};
}

std::string report_page(std::span<const RunData> runs, double now) {
  const auto groups = groups_of(runs);
  const std::map<std::string, std::string, std::less<>> places{
      {"title", title_of(runs)},
      {"subtitle", fmt::format("Training report of {}, {}", utc_minute(now), counted(std::ssize(runs), "run"))},
      {"overview", overview(runs)},
      {"notes", notes(runs)},
      {"values", values_table(runs, groups)},
      {"data", escaped_json(report_data(runs))},
      {"footer", fmt::format("Written by lockstep {}. Curves have at most {} points; every interval keeps its smallest "
                             "and its largest value.",
                             LOCKSTEP_VERSION, with_commas(kMostPoints))}};
  // One pass: a text of a run that looks like a place stays a text.
  std::string page;
  std::string_view rest = kReportTemplate;
  for (std::size_t open = rest.find("{{"); open != std::string_view::npos; open = rest.find("{{")) {
    const std::size_t close = rest.find("}}", open);
    LOCKSTEP_ASSERT(close != std::string_view::npos, "every place of the template ends");
    const auto place = places.find(rest.substr(open + 2, close - open - 2));
    LOCKSTEP_ASSERT(place != places.end(), "every place of the template is known");
    page.append(rest.substr(0, open)).append(place->second);
    rest.remove_prefix(close + 2);
  }
  return page.append(rest);
}

}  // namespace lockstep
