// Converts text and file values to fields and back, for every type of field. Torch-free.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include <lockstep/base/error.h>

#include "config/fields.h"

namespace lockstep {

/// "optim" of "optim.lr"; "" of a field at the top level.
std::string section_of(std::string_view field);

/// A value in a file that no field accepts: "a table", "a date".
struct UnusableValue {
  std::string description{};
  bool operator==(const UnusableValue&) const = default;
};

/// A value in TOML or JSON. Integers beyond int64 are std::uint64_t.
using FileValue = std::variant<std::string, std::int64_t, std::uint64_t, double, bool, std::vector<int>, UnusableValue>;

/// For messages: `the text "3"`, `3`, `true`.
std::string describe(const FileValue& value);

/// Parsing returns the problem, whose `what` is "expected ..."; nullopt: `out` was set. check_config() checks ranges.
using Refusal = std::optional<Problem>;
Refusal from_text(const FieldInfo& info, std::string_view text, bool& out);
Refusal from_text(const FieldInfo& info, std::string_view text, int& out);
Refusal from_text(const FieldInfo& info, std::string_view text, std::int64_t& out);
Refusal from_text(const FieldInfo& info, std::string_view text, std::uint64_t& out);
Refusal from_text(const FieldInfo& info, std::string_view text, double& out);
Refusal from_text(const FieldInfo& info, std::string_view text, std::string& out);
Refusal from_text(const FieldInfo& info, std::string_view text, DeviceSpec& out);
Refusal from_text(const FieldInfo& info, std::string_view text, LrSchedule& out);
Refusal from_text(const FieldInfo& info, std::string_view text, StepCount& out);
/// An empty text is no number.
Refusal from_text(const FieldInfo& info, std::string_view text, std::optional<double>& out);

Refusal from_file(const FieldInfo& info, const FileValue& value, bool& out);
Refusal from_file(const FieldInfo& info, const FileValue& value, int& out);
Refusal from_file(const FieldInfo& info, const FileValue& value, std::int64_t& out);
Refusal from_file(const FieldInfo& info, const FileValue& value, std::uint64_t& out);
Refusal from_file(const FieldInfo& info, const FileValue& value, double& out);
Refusal from_file(const FieldInfo& info, const FileValue& value, std::string& out);
Refusal from_file(const FieldInfo& info, const FileValue& value, DeviceSpec& out);
Refusal from_file(const FieldInfo& info, const FileValue& value, LrSchedule& out);
Refusal from_file(const FieldInfo& info, const FileValue& value, StepCount& out);
Refusal from_file(const FieldInfo& info, const FileValue& value, std::optional<double>& out);

std::string to_text(bool value);
std::string to_text(int value);
std::string to_text(std::int64_t value);
std::string to_text(std::uint64_t value);
std::string to_text(double value);  ///< the shortest text that parses to the same number
std::string to_text(const std::string& value);
std::string to_text(const DeviceSpec& value);
std::string to_text(const LrSchedule& value);
std::string to_text(const StepCount& value);
std::string to_text(const std::optional<double>& value);

namespace detail {
Refusal spelling_value(std::string_view text, std::span<const Spelling> spellings,
                       std::span<const ForeignSpelling> foreign, int& out);
std::string expected_spelling(std::span<const Spelling> spellings);
}  // namespace detail

template <class Enum>
requires std::is_enum_v<Enum> Refusal from_text(const FieldInfo&, std::string_view text, Enum& out) {
  int value = 0;
  Refusal refusal = detail::spelling_value(text, EnumText<Enum>::kSpellings, EnumText<Enum>::kForeign, value);
  if (!refusal) {
    out = static_cast<Enum>(value);
  }
  return refusal;
}

template <class Enum>
requires std::is_enum_v<Enum> Refusal from_file(const FieldInfo& info, const FileValue& value, Enum& out) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    return from_text(info, *text, out);
  }
  return Problem{detail::expected_spelling(EnumText<Enum>::kSpellings), {}};
}

template <class Enum>
requires std::is_enum_v<Enum> std::string to_text(Enum value) {
  for (const Spelling& spelling : EnumText<Enum>::kSpellings) {
    if (spelling.value == static_cast<int>(value)) {
      return std::string(spelling.text);
    }
  }
  return {};
}

/// Words, names and other texts, also those that can look like a number ("10%" and 10); else a number, true or false.
template <class T>
inline constexpr bool kIsText = !std::is_arithmetic_v<T> && !std::is_same_v<T, std::optional<double>>;

/// A string in TOML and JSON.
std::string in_quotes(std::string_view text);

/// The value in a TOML file: text is quoted, everything else is not.
template <class T>
std::string to_toml(const T& value) {
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, std::uint64_t>) {
    return to_text(value);
  } else if constexpr (std::is_same_v<T, StepCount>) {
    return value.is_part() ? in_quotes(to_text(value)) : to_text(value);
  } else if constexpr (std::is_same_v<T, std::optional<double>>) {
    return value ? to_text(*value) : in_quotes("");
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    // TOML's integers are signed.
    const bool fits = value <= std::uint64_t{std::numeric_limits<std::int64_t>::max()};
    return fits ? to_text(value) : in_quotes(to_text(value));
  } else {
    return in_quotes(to_text(value));
  }
}

/// "expected a whole number of 1 or more". `too_large`: the value exceeds the maximum, so show a large maximum as well.
std::string expected_number(const FieldInfo& info, bool whole, bool too_large = false);

/// "expected ..." if the number is out of the field's range; always nullopt for other types.
template <class T>
Refusal check_range(const FieldInfo& info, const T& value) {
  if constexpr (std::is_same_v<T, StepCount>) {
    if (!value.is_part()) {
      Refusal refusal = check_range(info, value.number());
      if (refusal) {
        refusal->what += ", or a part such as 10%";
      }
      return refusal;
    }
    if (!value.is_valid()) {
      return Problem{"expected a part above 0%, 100% at most", {}};
    }
  } else if constexpr (std::is_same_v<T, std::optional<double>>) {
    return value ? check_range(info, *value) : std::nullopt;
  } else if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    const auto number = static_cast<double>(value);
    const bool enough = info.above_minimum ? number > info.minimum : number >= info.minimum;
    if (!enough || !(number <= info.maximum)) {
      return Problem{expected_number(info, std::is_integral_v<T>, /*too_large=*/number > info.maximum), {}};
    }
  }
  return std::nullopt;
}

/// For comments in a file: "a whole number from 0 to 65536", "auto, cpu or gpu".
template <class T>
std::string allowed_values(const FieldInfo& info) {
  constexpr std::string_view kExpected = "expected ";
  if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    return "a whole number of 0 or more";
  } else if constexpr (std::is_arithmetic_v<T>) {
    return expected_number(info, std::is_integral_v<T>).substr(kExpected.size());
  } else if constexpr (std::is_enum_v<T>) {
    return detail::expected_spelling(EnumText<T>::kSpellings).substr(kExpected.size());
  } else if constexpr (std::is_same_v<T, StepCount>) {
    return expected_number(info, /*whole=*/true).substr(kExpected.size()) + ", or a part in quotes such as \"10%\"";
  } else if constexpr (std::is_same_v<T, std::optional<double>>) {
    return expected_number(info, /*whole=*/false).substr(kExpected.size()) + ", or \"\" for none";
  } else if constexpr (std::is_same_v<T, DeviceSpec>) {
    return "a number, a list of numbers, or a text in quotes";
  } else {
    return "a text in quotes";
  }
}

/// For --help and the docs: "N", "N|P%", "auto|cpu|gpu", "true|false".
template <class T>
std::string value_syntax() {
  if constexpr (std::is_same_v<T, bool>) {
    return "true|false";
  } else if constexpr (std::is_integral_v<T>) {
    return "N";
  } else if constexpr (std::is_floating_point_v<T> || std::is_same_v<T, std::optional<double>>) {
    return "X";
  } else if constexpr (std::is_enum_v<T>) {
    std::string text;
    for (const Spelling& spelling : EnumText<T>::kSpellings) {
      text += (text.empty() ? "" : "|") + std::string(spelling.text);
    }
    return text;
  } else if constexpr (std::is_same_v<T, DeviceSpec>) {
    return "DEVICES";
  } else if constexpr (std::is_same_v<T, LrSchedule>) {
    return "SCHEDULE";
  } else if constexpr (std::is_same_v<T, StepCount>) {
    return "N|P%";
  } else {
    return "TEXT";
  }
}

}  // namespace lockstep
