// The only file that includes nlohmann/json. Ordered keys; strict parsing of files that other programs may have
// changed. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace lockstep {

using Json = nlohmann::ordered_json;

/// Strict parsing: no duplicate keys, no trailing text, at most `max_depth` levels. Throws: std::runtime_error with
/// line and column; callers add the name of the file.
Json parse_json(std::string_view text, int max_depth = 8);

/// The member of an object. Throws: std::runtime_error that names it, as the next one does.
const Json& member(const Json& object, std::string_view name);

/// The value as a T: std::string, bool, int, std::int64_t, or a std::vector of std::string, bool or std::int64_t.
/// Throws: std::runtime_error such as: found 1.5, expected "launches" to be an integer.
template <class T>
T value_as(const Json& value, std::string_view name);

template <class T>
T member_as(const Json& object, std::string_view name) {
  return value_as<T>(member(object, name), name);
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

/// A text of the program that is read back byte by byte: a string, or {"hex": "ff00"} if it is not UTF-8.
Json exact_json(std::string_view text);
/// The text that exact_json() got. Throws: std::runtime_error as value_as().
std::string exact_text(const Json& value, std::string_view name);

/// One line; non-finite numbers become the strings "NaN", "Infinity", "-Infinity"; bytes that are not UTF-8 become
/// U+FFFD.
std::string dump_json(const Json& value);
std::string dump_json_pretty(const Json& value);

}  // namespace lockstep
