// The middle of several measurements. Torch-free.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace lockstep {

/// `values`: at least one. Of an even number the smaller one of the two in the middle.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace lockstep
