// NaN and infinity as words, the same in all files and pages of lockstep. Torch-free.
#pragma once

#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

namespace lockstep {

/// nullopt: the number is finite.
inline std::optional<std::string_view> special_word(double number) {
  if (std::isnan(number)) {
    return "NaN";
  }
  if (std::isinf(number)) {
    return number > 0 ? "Infinity" : "-Infinity";
  }
  return std::nullopt;
}

/// nullopt: it is none of these words.
inline std::optional<double> special_number(std::string_view word) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double number : {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity}) {
    if (word == special_word(number)) {
      return number;
    }
  }
  return std::nullopt;
}

}  // namespace lockstep
