#include "config/field_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/json.h"
#include "base/mapped.h"
#include "base/text.h"

namespace lockstep {
namespace {

constexpr double kSanityLimit = 1e6;  // larger maxima are shown only in errors

constexpr const char* kWithoutQuotes = "write it without quotes";

Problem expected_text() { return {"expected a text in quotes", {}}; }
Problem expected_bool() { return {"expected true or false", {}}; }

/// A field in seconds has this at the end of its name.
bool is_duration(const FieldInfo& info) { return info.name.ends_with("_s"); }

Problem expected_real(const FieldInfo& info, std::string hint) {
  const char* more = is_duration(info) ? ", or a time such as 90s, 30min, 2h, 1d or 1:30:00" : "";
  return {expected_number(info, /*whole=*/false) + more, std::move(hint)};
}

/// Files have types, so a value in quotes is a mistake there if it is one without them.
template <class T>
std::string quotes_hint(const FieldInfo& info, const FileValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  T ignored{};
  return text != nullptr && !from_text(info, *text, ignored) ? kWithoutQuotes : "";
}

Problem expected_steps(const FieldInfo& info, std::string hint) {
  return {expected_number(info, /*whole=*/true) + ", or a part such as 10%", std::move(hint)};
}

/// Other systems write a tenth as 0.1, and all as 1.0.
std::string part_hint(double fraction, std::string_view quote) {
  return fraction > 0 && fraction <= 1 ? fmt::format("did you mean {0}{1:g}%{0}?", quote, 100 * fraction)
                                       : std::string();
}

template <class Whole>
Refusal whole_from_file(const FieldInfo& info, const FileValue& value, Whole& out) {
  if (const auto* number = std::get_if<std::int64_t>(&value)) {
    return from_text(info, to_text(*number), out);
  }
  if (const auto* number = std::get_if<std::uint64_t>(&value)) {
    return from_text(info, to_text(*number), out);
  }
  return Problem{expected_number(info, /*whole=*/true), quotes_hint<Whole>(info, value)};
}

}  // namespace

std::string section_of(std::string_view field) {
  const auto dot = field.find('.');
  return std::string(dot == std::string_view::npos ? std::string_view() : field.substr(0, dot));
}

std::string describe(const FileValue& value) {
  struct {
    std::string operator()(const std::string& text) const { return in_quotes(text); }
    std::string operator()(std::int64_t number) const { return to_text(number); }
    std::string operator()(std::uint64_t number) const { return to_text(number); }
    std::string operator()(double number) const {
      const std::string text = to_text(number);
      return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
    }
    std::string operator()(bool yes) const { return to_text(yes); }
    std::string operator()(const std::vector<int>& list) const { return fmt::format("[{}]", fmt::join(list, ", ")); }
    std::string operator()(const UnusableValue& other) const { return other.description; }
  } const as_text;
  return std::visit(as_text, value);
}

Refusal from_text(const FieldInfo&, std::string_view text, bool& out) {
  const std::string word = to_lower(text);
  if (word == "true" || word == "yes" || word == "on" || word == "1") {
    out = true;
  } else if (word == "false" || word == "no" || word == "off" || word == "0") {
    out = false;
  } else {
    return expected_bool();
  }
  return std::nullopt;
}

Refusal from_text(const FieldInfo& info, std::string_view text, int& out) {
  const auto value = parse_int(text);
  if (!value || *value < std::numeric_limits<int>::min() || *value > std::numeric_limits<int>::max()) {
    return Problem{expected_number(info, /*whole=*/true), {}};
  }
  out = static_cast<int>(*value);
  return std::nullopt;
}

Refusal from_text(const FieldInfo& info, std::string_view text, std::int64_t& out) {
  const auto value = parse_int(text);
  if (!value) {
    const bool is_switch_of_others = info.name == "fast_dev_run" && to_lower(text) == "true";
    return Problem{expected_number(info, /*whole=*/true), is_switch_of_others ? "use 1, a number of steps" : ""};
  }
  out = *value;
  return std::nullopt;
}

Refusal from_text(const FieldInfo&, std::string_view text, std::uint64_t& out) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
    const bool is_seed_of_others = to_lower(text) == "random";
    return Problem{"expected a whole number from 0 to 18446744073709551615",
                   is_seed_of_others ? "use a number of your own, such as --seed $RANDOM" : ""};
  }
  out = value;
  return std::nullopt;
}

Refusal from_text(const FieldInfo& info, std::string_view text, double& out) {
  const auto value = is_duration(info) ? parse_seconds(text) : parse_double(text);
  if (!value) {
    return expected_real(info, {});
  }
  out = *value;
  return std::nullopt;
}

Refusal from_text(const FieldInfo&, std::string_view text, std::string& out) {
  out = text;
  return std::nullopt;
}

Refusal from_text(const FieldInfo&, std::string_view text, DeviceSpec& out) {
  out = DeviceSpec(text);  // keeps its own problems
  return std::nullopt;
}

Refusal from_text(const FieldInfo&, std::string_view text, LrSchedule& out) {
  out = LrSchedule(text);  // keeps its own problems
  return std::nullopt;
}

Refusal from_text(const FieldInfo& info, std::string_view text, StepCount& out) {
  if (text.ends_with('%')) {
    if (const auto percent = parse_double(text.substr(0, text.size() - 1))) {
      out = StepCount::percent(*percent);
      return std::nullopt;
    }
  } else if (const auto number = parse_int(text)) {
    out = *number;
    return std::nullopt;
  }
  return expected_steps(info, part_hint(parse_double(text).value_or(0), ""));
}

Refusal from_text(const FieldInfo& info, std::string_view text, std::optional<double>& out) {
  double number = 0;
  Refusal refusal = text.empty() ? std::nullopt : from_text(info, text, number);
  if (!refusal) {
    out = text.empty() ? std::nullopt : std::optional(number);
  }
  return refusal;
}

Refusal from_file(const FieldInfo&, const FileValue& value, bool& out) {
  if (const auto* yes = std::get_if<bool>(&value)) {
    out = *yes;
    return std::nullopt;
  }
  Problem problem = expected_bool();
  if (value == FileValue("true") || value == FileValue("false")) {
    problem.hint = kWithoutQuotes;
  }
  return problem;
}

Refusal from_file(const FieldInfo& info, const FileValue& value, int& out) { return whole_from_file(info, value, out); }

Refusal from_file(const FieldInfo& info, const FileValue& value, std::int64_t& out) {
  return whole_from_file(info, value, out);
}

Refusal from_file(const FieldInfo& info, const FileValue& value, std::uint64_t& out) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    return from_text(info, *text, out);  // TOML has no numbers above int64
  }
  return whole_from_file(info, value, out);
}

Refusal from_file(const FieldInfo& info, const FileValue& value, double& out) {
  if (const auto* number = std::get_if<double>(&value); number != nullptr && std::isfinite(*number)) {
    out = *number;
    return std::nullopt;
  }
  if (const auto* number = std::get_if<std::int64_t>(&value)) {
    out = static_cast<double>(*number);
    return std::nullopt;
  }
  if (const auto* text = std::get_if<std::string>(&value); text != nullptr && is_duration(info)) {
    return from_text(info, *text, out);
  }
  if (is_duration(info) && std::holds_alternative<UnusableValue>(value)) {
    return expected_real(info, "write a time in quotes");
  }
  return expected_real(info, quotes_hint<double>(info, value));
}

Refusal from_file(const FieldInfo&, const FileValue& value, std::string& out) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    out = *text;
    return std::nullopt;
  }
  return expected_text();
}

Refusal from_file(const FieldInfo&, const FileValue& value, DeviceSpec& out) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    if (trim(*text).starts_with('[')) {
      return Problem{"expected a list of GPU indices", kWithoutQuotes};
    }
    out = DeviceSpec(*text);
  } else if (const auto* list = std::get_if<std::vector<int>>(&value)) {
    out = DeviceSpec(*list);
  } else if (const auto* number = std::get_if<std::int64_t>(&value); number != nullptr &&
                                                                     *number >= std::numeric_limits<int>::min() &&
                                                                     *number <= std::numeric_limits<int>::max()) {
    out = DeviceSpec(static_cast<int>(*number));
  } else {
    return Problem{"expected a number of devices, a list of GPU indices, or a text such as \"auto\"", {}};
  }
  return std::nullopt;
}

Refusal from_file(const FieldInfo&, const FileValue& value, LrSchedule& out) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    out = LrSchedule(*text);
    return std::nullopt;
  }
  return expected_text();
}

Refusal from_file(const FieldInfo& info, const FileValue& value, StepCount& out) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    Refusal refusal = from_text(info, *text, out);
    return refusal || out.is_part() ? refusal : expected_steps(info, kWithoutQuotes);
  }
  if (const auto* number = std::get_if<std::int64_t>(&value)) {
    out = *number;
    return std::nullopt;
  }
  const auto* fraction = std::get_if<double>(&value);
  return expected_steps(info, part_hint(fraction != nullptr ? *fraction : 0, "\""));
}

Refusal from_file(const FieldInfo& info, const FileValue& value, std::optional<double>& out) {
  if (value == FileValue(std::string())) {
    out = std::nullopt;
    return std::nullopt;
  }
  double number = 0;
  Refusal refusal = from_file(info, value, number);
  if (!refusal) {
    out = number;
  }
  return refusal;
}

std::string to_text(bool value) { return value ? "true" : "false"; }
std::string to_text(int value) { return fmt::format("{}", value); }
std::string to_text(std::int64_t value) { return fmt::format("{}", value); }
std::string to_text(std::uint64_t value) { return fmt::format("{}", value); }
std::string to_text(double value) { return fmt::format("{}", value); }
std::string to_text(const std::string& value) { return value; }
std::string to_text(const DeviceSpec& value) { return value.text(); }
std::string to_text(const LrSchedule& value) { return value.text(); }
std::string to_text(const StepCount& value) {
  return value.is_part() ? fmt::format("{}%", value.percent()) : to_text(value.number());
}

std::string to_text(const std::optional<double>& value) { return value ? to_text(*value) : std::string(); }

std::string in_quotes(std::string_view text) {
  std::string escaped = dump_json(Json(text));  // JSON's escapes are valid in TOML; TOML also escapes DEL
  for (auto at = escaped.find('\x7f'); at != std::string::npos; at = escaped.find('\x7f', at)) {
    escaped.replace(at, 1, "\\u007f");
  }
  return escaped;
}

std::string expected_number(const FieldInfo& info, bool whole, bool too_large) {
  const std::string_view kind = whole ? "a whole number" : "a number";
  if (info.maximum <= kSanityLimit) {
    return info.above_minimum ? fmt::format("expected {} above {}, {} at most", kind, info.minimum, info.maximum)
                              : fmt::format("expected {} from {} to {}", kind, info.minimum, info.maximum);
  }
  if (too_large && info.maximum < std::numeric_limits<double>::max()) {
    return fmt::format("expected {} of {:.0f} or less", kind, info.maximum);
  }
  if (info.minimum == std::numeric_limits<double>::lowest()) {
    return fmt::format("expected {}", kind);
  }
  return info.above_minimum ? fmt::format("expected {} above {}", kind, info.minimum)
                            : fmt::format("expected {} of {} or more", kind, info.minimum);
}

namespace detail {

std::string expected_spelling(std::span<const Spelling> spellings) {
  return "expected " + join_or(mapped<std::string>(spellings, &Spelling::text));
}

Refusal spelling_value(std::string_view text, std::span<const Spelling> spellings,
                       std::span<const ForeignSpelling> foreign, int& out) {
  const std::string word = to_lower(text);
  std::vector<std::string> names;
  for (const Spelling& spelling : spellings) {
    if (spelling.text == word) {
      out = spelling.value;
      return std::nullopt;
    }
    names.emplace_back(spelling.text);
  }
  const std::string expected = expected_spelling(spellings);
  for (const ForeignSpelling& other : foreign) {
    if (other.text == word) {
      return Problem{expected, std::string(other.hint)};
    }
  }
  return Problem{expected, did_you_mean(text, names, "", "")};
}

}  // namespace detail
}  // namespace lockstep
