// Output that is difficult to transfer: long and short lines, NUL, escape sequences, invalid UTF-8. Writer and reader
// generate the same lines.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

/// 1 to 5000 bytes of line `line` of rank `rank`, including its end.
inline std::string loud_line(int rank, int line) {
  std::uint64_t state = (static_cast<std::uint64_t>(rank) << 32U) + static_cast<std::uint64_t>(line) + 1;
  const auto next = [&state] {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return state >> 33U;
  };
  const std::size_t size = next() % 16 == 0 ? next() % 5000 : next() % 100;
  std::string text(size, ' ');
  for (char& c : text) {
    c = static_cast<char>(next());
  }
  return text + '\n';
}

}  // namespace lockstep
