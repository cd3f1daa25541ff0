#include <algorithm>
#include <cctype>
#include <type_traits>

#include <fmt/format.h>

#include <lockstep/config/config_io.h>
#include <lockstep/config/train_config.h>

#include "config/field_value.h"
#include "config/toml_writer.h"

namespace lockstep {

std::string run_directory(const TrainConfig& config) {
  if (!config.run_dir.empty()) {
    std::string_view directory = config.run_dir;
    while (directory.size() > 1 && (directory.ends_with('/') || directory.ends_with("/."))) {
      directory.remove_suffix(1);
    }
    return std::string(directory);
  }
  return "runs/" + (config.run_name.empty() ? std::string("run") : config.run_name);
}

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

namespace {

std::string toml_line(std::string_view key, const std::string& value, std::string_view name,
                      const std::map<std::string, std::string>& comments) {
  const std::string line = fmt::format("{} = {}", key, value);
  const auto comment = comments.find(std::string(name));
  return comment == comments.end() ? line + "\n" : fmt::format("{:<40}  # {}\n", line, comment->second);
}

bool is_bare_key(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

}  // namespace

std::string config_toml(const TrainConfig& config) { return write_toml(config, {}); }
std::string program_toml(std::span<const ProgramValue> values) { return write_program_toml(values, {}); }

std::string write_program_toml(std::span<const ProgramValue> values,
                               const std::map<std::string, std::string>& comments) {
  std::string text = values.empty() ? "" : fmt::format("\n[{}]\n", kProgramSection);
  for (const ProgramValue& value : values) {
    if (!value.is_text && (value.text.ends_with("inf") || value.text.ends_with("nan"))) {
      continue;  // a default of the program; no source may give such a number
    }
    text += toml_line(is_bare_key(value.name) ? value.name : in_quotes(value.name),
                      value.is_text ? in_quotes(value.text) : value.text, value.name, comments);
  }
  return text;
}

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
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, LrSchedule>) {
      if (value.is_function()) {  // no file can hold it: who reads this one needs the program anyway
        text += fmt::format("# {} = {}: a function of the program\n", key, to_toml(value));
        return;
      }
    }
    text += toml_line(key, to_toml(value), info.name, comments);
  });
  return text;
}

}  // namespace lockstep
