// Text in columns of a terminal; every character counts as one column. Torch-free.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

inline bool begins_character(char byte) { return (byte & 0xc0) != 0x80; }

inline std::size_t columns_of(std::string_view utf8) {
  return static_cast<std::size_t>(std::ranges::count_if(utf8, begins_character));
}

/// The first `columns` characters.
inline std::string fitted(std::string_view utf8, std::size_t columns) {
  std::size_t end = 0;
  for (std::size_t column = 0; end < utf8.size(); ++end) {
    if (begins_character(utf8[end]) && column++ == columns) {
      break;
    }
  }
  return std::string(utf8.substr(0, end));
}

/// With blanks behind it, if it is shorter.
inline std::string padded(std::string_view utf8, std::size_t columns) {
  return std::string(utf8) + std::string(columns - std::min(columns_of(utf8), columns), ' ');
}

}  // namespace lockstep
