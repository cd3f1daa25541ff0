// A value of a setting in a message. Torch-free.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/columns.h"
#include "base/text.h"

namespace lockstep {

/// Printable. Of a longer one the begin: a whole file may have been given by mistake.
inline std::string shown_value(std::string_view value) {
  constexpr std::size_t kMost = 200;  // characters; a path fits
  const std::string all = printable(value);
  std::string shown = fitted(all, kMost);
  return shown.size() < all.size() ? shown + "..." : shown;
}

}  // namespace lockstep
