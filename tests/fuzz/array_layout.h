// What the parsers of array files promise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <lockstep/base/error.h>

#include "formats/array_file.h"
#include "fuzz/target.h"

namespace lockstep::fuzz {

inline void check_layout(ArrayLayout (*parse)(std::span<const std::byte>), std::string_view input) {
  ArrayLayout layout;
  try {
    layout = parse(std::as_bytes(std::span(input)));
  } catch (const DataError&) {
    return;
  }
  promise(layout.offset >= 0 && layout.offset <= static_cast<std::int64_t>(input.size()), "data inside the file",
          input);
  promise(layout.shape.size() <= 16, "at most 16 dimensions", input);
  std::int64_t elements = 1;
  for (const std::int64_t extent : layout.shape) {
    promise(extent >= 0, "sizes of 0 or more", input);
    promise(!__builtin_mul_overflow(elements, extent, &elements), "a number of elements", input);
  }
  promise(elements <= static_cast<std::int64_t>(input.size()), "no more elements than bytes", input);
}

}  // namespace lockstep::fuzz
