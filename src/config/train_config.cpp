#include <fmt/format.h>

#include <lockstep/config/config_io.h>
#include <lockstep/config/train_config.h>

#include "config/field_value.h"
#include "config/toml_writer.h"

namespace lockstep {

std::vector<std::pair<std::string, std::string>> config_values(const TrainConfig& config) {
  std::vector<std::pair<std::string, std::string>> values;
  visit_fields(config,
               [&values](const FieldInfo& info, const auto& value) { values.emplace_back(info.name, to_text(value)); });
  return values;
}

bool ranks_agree_on(std::string_view field) {
  const TrainConfig config;
  bool agree = false;
  visit_fields(config,
               [&](const FieldInfo& info, const auto&) { agree = agree || (info.name == field && info.ranks_agree); });
  return agree;
}

std::string config_toml(const TrainConfig& config) { return write_toml(config, {}); }

std::string write_toml(const TrainConfig& config, const std::map<std::string, std::string>& comments) {
  std::string text;
  std::string section;
  visit_fields(config, [&](const FieldInfo& info, const auto& value) {
    if (info.flag_only) {
      return;
    }
    const auto dot = info.name.find('.');
    const std::string_view key = dot == std::string_view::npos ? info.name : info.name.substr(dot + 1);
    if (dot != std::string_view::npos && info.name.substr(0, dot) != section) {
      section = info.name.substr(0, dot);
      text += fmt::format("\n[{}]\n", section);
    }
    const std::string line = fmt::format("{} = {}", key, to_toml(value));
    const auto comment = comments.find(std::string(info.name));
    text += comment == comments.end() ? line + "\n" : fmt::format("{:<40}  # {}\n", line, comment->second);
  });
  return text;
}

}  // namespace lockstep
