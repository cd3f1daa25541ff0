#include <algorithm>
#include <limits>
#include <optional>

#include <fmt/format.h>
#include <toml++/toml.h>

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

}  // namespace

std::vector<FileSetting> parse_config_toml(std::string_view text, const std::string& label) {
  toml::table root;
  try {
    root = toml::parse(text, label);
  } catch (const toml::parse_error& error) {
    throw ConfigError(fmt::format("{}:{}: {}", label, error.source().begin.line, error.description()),
                      "correct the file; it must be TOML");
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
  std::stable_sort(settings.begin(), settings.end(),
                   [](const FileSetting& a, const FileSetting& b) { return a.first_line < b.first_line; });
  return settings;
}

}  // namespace lockstep
