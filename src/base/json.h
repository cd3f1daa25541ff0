// The only includer of nlohmann/json. Ordered keys; strict reading for files that others may have touched. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace lockstep {

using Json = nlohmann::ordered_json;

/// Parses strictly: no duplicate keys, no trailing text, at most `max_depth` levels. Throws: std::runtime_error with
/// line and column; callers wrap it with the file's name.
Json parse_json(std::string_view text, int max_depth = 8);

/// One line; numbers that are not finite become the strings "NaN", "Infinity", "-Infinity".
std::string dump_json(const Json& value);
std::string dump_json_pretty(const Json& value);

}  // namespace lockstep
