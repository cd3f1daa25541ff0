// The only file that includes nlohmann/json. Ordered keys; strict parsing of files that other programs may have
// changed. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace lockstep {

using Json = nlohmann::ordered_json;

/// Strict parsing: no duplicate keys, no trailing text, at most `max_depth` levels. Throws: std::runtime_error with
/// line and column; callers add the name of the file.
Json parse_json(std::string_view text, int max_depth = 8);

/// One line; non-finite numbers become the strings "NaN", "Infinity", "-Infinity".
std::string dump_json(const Json& value);
std::string dump_json_pretty(const Json& value);

}  // namespace lockstep
