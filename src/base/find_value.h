// The value of a key, as in CheckpointContents::values.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace lockstep {

/// nullptr: the key is missing.
inline const std::string* find_value(const std::map<std::string, std::string>& values, std::string_view key) {
  const auto found = values.find(std::string(key));
  return found == values.end() ? nullptr : &found->second;
}

}  // namespace lockstep
