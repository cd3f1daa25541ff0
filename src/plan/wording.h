// Words that several messages of a plan share. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

/// "1 rank", "2 ranks", "2 micro-batches".
inline std::string counted(std::int64_t count, std::string_view noun) {
  std::string text = std::to_string(count) + ' ' + std::string(noun);
  if (count != 1) {
    text += noun.ends_with("batch") ? "es" : "s";
  }
  return text;
}

}  // namespace lockstep
