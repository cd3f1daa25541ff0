#include "cli/runs/run_summary.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include <lockstep/config/config_io.h>

#include "base/text.h"
#include "base/wall_clock.h"
#include "config/fields.h"
#include "storage/names.h"

namespace lockstep {
namespace {

constexpr std::string_view kPath = "(path)";
constexpr std::string_view kHost = "(host)";

bool is_address(std::string_view word) {
  const std::string_view number = word.substr(0, word.find(':'));
  const bool is_v4 = std::ranges::count(number, '.') == 3 && number.find_first_not_of("0123456789.") == number.npos;
  const bool is_v6 = (word.find("::") != word.npos || std::ranges::count(word, ':') > 4) &&
                     word.find_first_not_of("0123456789abcdefABCDEF:") == word.npos;
  return is_v4 || is_v6;
}

bool is_one_of(std::string_view word, const std::vector<std::string>& hosts) {
  const std::string_view name = word.substr(0, word.find(':'));  // a port may be behind it
  const auto short_name = [](std::string_view host) { return host.substr(0, host.find('.')); };
  return !name.empty() &&
         std::ranges::any_of(hosts, [&](const std::string& host) { return name == host || name == short_name(host); });
}

/// What is shown instead of `word`; nullopt: itself. `before`: the word before it.
std::optional<std::string_view> replacement(std::string_view word, std::string_view before,
                                            const std::vector<std::string>& hosts) {
  if (word.find('/') != word.npos) {
    return kPath;
  }
  if (is_address(word)) {
    return "(address)";
  }
  if (before == "user") {
    return "(user)";
  }
  return before == "host" || word.find('@') != word.npos || is_one_of(word, hosts) ? std::optional(kHost)
                                                                                   : std::nullopt;
}

/// Settings that may name a person, a machine or a directory: all texts but the names of metrics.
std::vector<std::string_view> private_settings() {
  std::vector<std::string_view> names;
  const TrainConfig config;
  visit_fields(config, [&]<class Value>(const FieldInfo& info, const Value&) {
    if (std::is_same_v<Value, std::string> && !info.name.ends_with(".metric") && !info.name.ends_with(".monitor")) {
      names.push_back(info.name);
    }
  });
  return names;
}

/// `texts`: private_settings(). Of the program's own flags, each text may be such a name.
bool is_private(std::string_view setting, std::string_view value, const std::vector<std::string_view>& texts) {
  const bool is_plain = value == "true" || value == "false" || parse_double(value);
  return std::ranges::find(texts, setting) != texts.end() || (setting.starts_with(kProgramKeys) && !is_plain);
}

/// The length of the comment that names an argument at the begin of `text`, as a hint has it: load_module(...,
/// /*allow_partial=*/true). It is no path. 0: there is none.
std::size_t length_of_comment(std::string_view text) {
  constexpr std::string_view kBegin = "/*";
  constexpr std::string_view kEnd = "=*/";
  const auto end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", kBegin.size());
  return text.starts_with(kBegin) && end != text.npos && text.substr(end).starts_with(kEnd) ? end + kEnd.size() : 0;
}

}  // namespace

std::string without_names(std::string_view text, const std::vector<std::string>& hosts) {
  constexpr std::string_view kBetween = " \t\n\"'()[]{},;=|<>`";
  std::string shown;
  std::string_view before;
  while (!text.empty()) {
    const auto begin = std::min(text.find_first_not_of(kBetween), text.size());
    shown += text.substr(0, begin);
    text.remove_prefix(begin);
    const std::size_t comment = length_of_comment(text);
    shown += text.substr(0, comment);
    text.remove_prefix(comment);
    std::string_view word = text.substr(0, text.find_first_of(kBetween));
    text.remove_prefix(word.size());
    const std::string_view end = word.substr(std::min(word.find_last_not_of(":.") + 1, word.size()));
    word.remove_suffix(end.size());
    shown += replacement(word, before, hosts).value_or(word);
    shown += end;
    before = word;
  }
  return shown;
}

Json run_summary(const RunData& run, std::vector<std::string> hosts) {
  constexpr std::size_t kMostEvents = 10;
  std::int64_t starts = 0;
  std::string failure;
  for (const RunEvent& event : run.events) {
    starts += event.name == "start" ? 1 : 0;
    if (const auto names = event.fields.find("hosts"); names != event.fields.end() && names->is_string()) {
      std::ranges::transform(split(names->get<std::string>(), ','), std::back_inserter(hosts),
                             [](const std::string& name) { return std::string(trim(name)); });
    }
    if (const auto what = event.fields.find("what"); event.name == "failure" && what != event.fields.end()) {
      failure = event_text({.fields = {{"what", *what}}});
    }
  }
  const auto shown = [&](std::string_view text) { return without_names(printable(text), hosts); };
  Json summary{{"state", to_string(run.state)}, {"step", run.last_step}, {"starts", starts}};
  constexpr std::array<std::string_view, 4> kShown{"build", "launcher", "ranks", "threads per rank"};
  for (const auto& [title, value] : run.environment) {
    if (std::ranges::find(kShown, title) != kShown.end()) {
      summary[title] = shown(value);
    }
  }
  const auto plain = config_values(TrainConfig{});
  const std::map<std::string, std::string> defaults(plain.begin(), plain.end());
  const auto texts = private_settings();
  summary["settings"] = Json::array();
  for (const auto& [name, value] : run.settings) {
    if (const auto usual = defaults.find(name); usual == defaults.end() || usual->second != value) {
      summary["settings"].push_back(
          fmt::format("{} = {}", shown(name), is_private(name, value, texts) ? "(text)" : shown(value)));
    }
  }
  summary["failure"] = shown(failure);
  summary["events"] = Json::array();
  const std::size_t left_out = run.events.size() - std::min(run.events.size(), kMostEvents);
  for (std::size_t i = left_out; i < run.events.size(); ++i) {
    RunEvent event = run.events[i];
    event.fields.erase("hosts");
    event.fields.erase("from");  // a directory
    const std::string step = event.step ? fmt::format(", step {}", *event.step) : "";
    summary["events"].push_back(
        fmt::format("{} {}{}: {}", utc_minute(event.time), shown(event.name), step, shown(event_text(event))));
  }
  summary["notes"] = Json::array();
  for (const std::string& note : run.notes) {
    summary["notes"].push_back(shown(note));
  }
  return summary;
}

std::string summary_text(const Json& summary, std::size_t columns) {
  constexpr std::size_t kIndent = 18;
  std::string text;
  for (const auto& [title, value] : summary.items()) {
    std::vector<std::string> lines;
    for (const Json& entry : value.is_array() ? value : Json::array({value})) {
      const std::string line = entry.is_string() ? entry.get<std::string>() : dump_json(entry);
      lines.push_back(wrap(line, kIndent, columns));
    }
    text +=
        fmt::format("{:{}}{}\n", title, kIndent,
                    lines.empty() || lines.front().empty() ? "none" : join(lines, "\n" + std::string(kIndent, ' ')));
  }
  return text;
}

}  // namespace lockstep
