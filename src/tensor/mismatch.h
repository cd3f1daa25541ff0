// Describes differences between found and expected tensors.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

struct Mismatch {
  std::vector<std::string> missing{};
  std::vector<std::string> unexpected{};
  std::vector<std::string> different{};  ///< "fc.weight is Float [2, 3], expected Float [3, 2]"

  /// Records a different dtype or shape. Returns true if both are equal.
  bool compare(std::string_view name, const at::Tensor& found, const at::Tensor& expected);
  bool any() const noexcept { return !missing.empty() || !unexpected.empty() || !different.empty(); }
  /// The first ten of each kind.
  std::string text() const;
};

}  // namespace lockstep
