#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <toml++/toml.h>

#include "base/text.h"
#include "config/config_file.h"

namespace lockstep {
namespace {

std::optional<std::vector<int>> int_list(const toml::array& array) {
  std::vector<int> list;
  for (const toml::node& element : array) {
    const auto number = element.value_exact<std::int64_t>();
    if (!number || *number < std::numeric_limits<int>::min() || *number > std::numeric_limits<int>::max()) {
      return std::nullopt;
    }
    list.push_back(static_cast<int>(*number));
  }
  return list;
}

FileValue to_file_value(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) {
    return *text;
  }
  if (const auto number = node.value_exact<std::int64_t>()) {
    return *number;
  }
  if (const auto number = node.value_exact<double>()) {
    return *number;
  }
  if (const auto yes = node.value_exact<bool>()) {
    return *yes;
  }
  if (const toml::array* array = node.as_array()) {
    if (auto list = int_list(*array)) {
      return *std::move(list);
    }
    return UnusableValue{"a list that does not only contain whole numbers"};
  }
  return UnusableValue{node.is_table() ? "a table" : "a date or time"};
}

FileSetting make_setting(std::string name, const toml::node& node, const std::string& label) {
  const toml::source_region& region = node.source();
  return {.name = std::move(name),
          .value = to_file_value(node),
          .place = fmt::format("{}:{}", label, region.begin.line),
          .first_line = region.begin.line,
          .last_line = region.end.line};
}

constexpr std::string_view kBeToml = "correct the file; it must be TOML";

/// toml++ 3.3 has undefined behaviour for a character outside of ASCII where none may be, and a failed assertion for a
/// section without a name. This finds both before it parses.
class Precheck {
 public:
  Precheck(std::string_view text, const std::string& label) : text_(text), label_(label) {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    at_ = text_.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  }

  void run() {
    int depth = 0;  // of brackets and braces in a value
    bool line_begins = true;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == '"' || c == '\'') {
        skip_text(c);
        line_begins = false;
      } else if (static_cast<unsigned char>(c) >= 0x80) {
        refuse("found a character that is not ASCII, expected it only in comments and in texts in quotes");
      } else {
        if (c == '[' && depth == 0 && line_begins) {
          check_section();
        }
        depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
        line_begins = c == '\n' || (line_begins && (c == ' ' || c == '\t' || c == '\r'));
        ++at_;
      }
    }
  }

 private:
  bool follows(std::string_view what) const { return text_.substr(at_).starts_with(what); }

  void skip_text(char quote) {
    const std::string triple(3, quote);
    const bool multi_line = follows(triple);
    const std::string end = multi_line ? triple : std::string(1, quote);
    for (at_ += end.size(); at_ < text_.size() && !follows(end); ++at_) {
      if (!multi_line && text_[at_] == '\n') {
        return;  // not closed: toml++ reports it
      }
      if (quote == '"' && text_[at_] == '\\') {
        ++at_;
      }
    }
    at_ = std::min(at_ + end.size(), text_.size());
    for (int own = 0; multi_line && own < 2 && follows(end.substr(0, 1)); ++own) {
      ++at_;  // a text may end with two quotes of its own
    }
  }

  void check_section() const {
    constexpr std::string_view kBlanks = " \t";
    constexpr std::string_view kBegins = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-\"']";
    auto name = text_.find_first_not_of(kBlanks, at_ + 1);
    if (name != std::string_view::npos && text_[name] == '[') {
      name = text_.find_first_not_of(kBlanks, name + 1);
    }
    if (name != std::string_view::npos && kBegins.find(text_[name]) == std::string_view::npos) {
      refuse("expected the name of a section after [");
    }
  }

  [[noreturn]] void refuse(std::string_view what) const {
    const auto before = text_.substr(0, at_);
    throw ConfigError(fmt::format("{}:{}: {}", label_, 1 + std::ranges::count(before, '\n'), what),
                      std::string(kBeToml));
  }

  std::string_view text_;
  const std::string& label_;
  std::size_t at_ = 0;
};

bool is_toml_value(std::string_view value) {
  try {
    [[maybe_unused]] const toml::table parsed = toml::parse(fmt::format("x = {}", value));
    return true;
  } catch (const toml::parse_error&) {
    return false;
  }
}

std::string_view without_comment(std::string_view value) { return trim(value.substr(0, value.find('#'))); }

/// What to write instead of a value that is no TOML.
std::string hint_for_value(std::string_view value) {
  const std::string lower = to_lower(value);
  if (lower == "true" || lower == "false") {
    return fmt::format("write {} in small letters", lower);
  }
  if (lower == "yes" || lower == "no") {
    return fmt::format("write {}", lower == "yes");
  }
  if (lower == "none" || lower == "null" || value.empty()) {
    return "leave out the line: then the default counts";
  }
  if (value.starts_with('"') && value.find('\\') != std::string_view::npos) {
    return R"(in a text in " quotes a \ is written \\; in a text in ' quotes it is a \)";
  }
  if (value.find_first_of("=,\"'[]{}") != std::string_view::npos) {
    return std::string(kBeToml);
  }
  if (const auto digits = value.find_first_not_of("+-");
      digits <= 1 && value.find_first_not_of("0123456789", digits) == std::string_view::npos && value[digits] != '0') {
    return "write a number that fits into 64 bits";
  }
  if (parse_double(value)) {  // such as .5, 5. and 007
    return fmt::format("write {}, with digits on both sides of the point and no zero in front of others",
                       five_digits(*parse_double(value)));
  }
  return fmt::format("write \"{}\" in quotes", printable(value));
}

/// For the line of which the parser says that it is no TOML.
std::string hint_for_line(std::string_view line) {
  const auto equals = line.find('=');
  if (equals == std::string_view::npos) {
    const auto colon = line.find(':');
    const bool is_yaml = colon != std::string_view::npos && !trim(line).starts_with('[');
    return is_yaml ? "a setting is NAME = VALUE, with = instead of :" : std::string(kBeToml);
  }
  const std::string_view value = without_comment(line.substr(equals + 1));
  return is_toml_value(value) ? std::string(kBeToml) : hint_for_value(value);
}

std::string_view line_of(std::string_view text, std::size_t number) {
  for (; number > 1 && !text.empty(); --number) {
    text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  }
  return first_line(text);
}

}  // namespace

std::vector<FileSetting> parse_config_toml(std::string_view text, const std::string& label) {
  Precheck(text, label).run();
  toml::table root;
  try {
    root = toml::parse(text, label);
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;
    throw ConfigError(fmt::format("{}:{}: {}", label, line, error.description()), hint_for_line(line_of(text, line)));
  }
  std::vector<FileSetting> settings;
  for (const auto& [key, node] : root) {
    if (const toml::table* section = node.as_table()) {
      for (const auto& [inner_key, inner] : *section) {
        settings.push_back(make_setting(fmt::format("{}.{}", key.str(), inner_key.str()), inner, label));
      }
    } else {
      settings.push_back(make_setting(std::string(key.str()), node, label));
    }
  }
  // The parser sorts tables by key.
  std::ranges::stable_sort(settings,
                           [](const FileSetting& a, const FileSetting& b) { return a.first_line < b.first_line; });
  return settings;
}

}  // namespace lockstep
