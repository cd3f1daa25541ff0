#include "config/setting_form.h"

#include <optional>
#include <type_traits>

#include <fmt/format.h>

#include "config/command_tokens.h"
#include "config/field_value.h"

namespace lockstep {
namespace {

/// "N", "SECONDS", "RANKS*BATCH_SIZE"
bool is_placeholder_value(std::string_view word) {
  return word.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_*") == std::string_view::npos;
}

template <class T>
bool is_value(const FieldInfo& info, std::string_view word) {
  if (word.empty() || is_placeholder_value(word)) {
    return !word.empty();
  }
  T value{};
  if (from_text(info, word, value)) {
    return false;
  }
  if constexpr (std::is_same_v<T, DeviceSpec> || std::is_same_v<T, LrSchedule>) {
    return value.problems().empty();
  } else {
    return true;
  }
}

/// Text is in quotes, numbers and switches are not.
template <class T>
std::string value_in_file(std::string_view word) {
  constexpr bool kMayBeNumber = std::is_same_v<T, DeviceSpec> || std::is_same_v<T, StepCount>;
  const bool looks_like_number =
      is_placeholder_value(word) || word.find_first_not_of("-0123456789") == std::string_view::npos;
  return std::is_arithmetic_v<T> || std::is_same_v<T, std::optional<double>> || (kMayBeNumber && looks_like_number)
             ? std::string(word)
             : in_quotes(word);
}

/// `value`: as in a file; "": only the name.
std::string write_setting(SettingForm form, std::string_view name, std::string_view value, std::string_view plain) {
  const std::string section = section_of(name);
  const std::string_view key = section.empty() ? name : name.substr(section.size() + 1);
  if (form == SettingForm::variable) {
    return variable_name(kSettingVariables, name) + (plain.empty() ? "" : fmt::format("={}", plain));
  }
  if (form == SettingForm::toml) {
    return (section.empty() ? "" : fmt::format("[{}] ", section)) + std::string(key) +
           (value.empty() ? "" : fmt::format(" = {}", value));
  }
  const std::string entry = fmt::format("\"{}\": {}", key, value.empty() ? "..." : value);
  return section.empty() ? entry : fmt::format("\"{}\": {{{}}}", section, entry);
}

/// What a flag of a setting is in another form, and how much of the text behind its name is its value.
struct Written {
  std::string text{};
  std::size_t value_size = 0;
};

/// `rest`: the text behind the name. nullopt: no setting has this name.
std::optional<Written> write_flag(SettingForm form, std::string_view name, std::string_view rest) {
  const std::string wanted = normal_name(name);
  const bool has_value = rest.size() > 1 && (rest.front() == ' ' || rest.front() == '=');
  std::string_view word = has_value ? rest.substr(1) : std::string_view();
  word = word.substr(0, word.find_first_of(" ,;)"));
  word = word.substr(0, word.find_last_not_of(':') + 1);
  std::optional<Written> written;
  const TrainConfig config;
  visit_fields(config, [&]<class T>(const FieldInfo& info, const T&) {
    constexpr bool kIsSwitch = std::is_same_v<T, bool>;
    const bool is_off = kIsSwitch && wanted == fmt::format("no_{}", info.name);
    if (info.flag_only || (wanted != info.name && !is_off)) {
      return;
    }
    if (!is_off && is_value<T>(info, word)) {
      written = {write_setting(form, info.name, value_in_file<T>(word), word), word.size() + 1};
    } else {
      const std::string_view value = !kIsSwitch ? "" : is_off ? "false" : "true";
      written = {write_setting(form, info.name, value, value), 0};
    }
  });
  return written;
}

}  // namespace

std::string hint_in_form(SettingForm form, std::string_view hint) {
  constexpr std::string_view kDashes = "--";
  std::string text;
  while (form != SettingForm::flag) {
    const auto begin = hint.find(kDashes);
    if (begin == std::string_view::npos) {
      break;
    }
    const std::string_view behind = hint.substr(begin + kDashes.size());
    std::string_view name =
        behind.substr(0, behind.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"));
    name = name.substr(0, name.find_last_not_of('.') + 1);
    const auto written = write_flag(form, name, behind.substr(name.size()));
    text += hint.substr(0, begin);
    text += written ? written->text : fmt::format("{}{}", kDashes, name);
    hint = behind.substr(name.size() + (written ? written->value_size : 0));
  }
  return text + std::string(hint);
}

}  // namespace lockstep
