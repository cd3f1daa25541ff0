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
  return {std::move(name), to_file_value(node), fmt::format("{}:{}", label, node.source().begin.line)};
}

unsigned line_of(const toml::node& node) { return node.source().begin.line; }

}  // namespace

std::vector<FileSetting> parse_config_toml(std::string_view text, const std::string& label) {
  toml::table root;
  try {
    root = toml::parse(text, label);
  } catch (const toml::parse_error& error) {
    throw ConfigError(fmt::format("{}:{}: {}", label, error.source().begin.line, error.description()),
                      "correct the file; it must be TOML");
  }
  std::vector<std::pair<unsigned, FileSetting>> found;  // the parser sorts tables by key; sort by line instead
  for (const auto& [key, node] : root) {
    if (const toml::table* section = node.as_table()) {
      for (const auto& [inner_key, inner] : *section) {
        found.emplace_back(line_of(inner),
                           make_setting(fmt::format("{}.{}", key.str(), inner_key.str()), inner, label));
      }
    } else {
      found.emplace_back(line_of(node), make_setting(std::string(key.str()), node, label));
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<FileSetting> settings;
  for (auto& entry : found) {
    settings.push_back(std::move(entry.second));
  }
  return settings;
}

}  // namespace lockstep
