// Compares and copies tensors.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/tensor/named_tensors.h>

#include "base/mapped.h"

namespace lockstep {

inline std::vector<std::string> names(const NamedTensors& tensors) {
  return mapped(tensors, &NamedTensors::value_type::first);
}
inline std::vector<at::Tensor> values(const NamedTensors& tensors) {
  return mapped(tensors, &NamedTensors::value_type::second);
}

/// As a checkpoint would: values, not aliases.
inline NamedTensors copies(const NamedTensors& tensors) {
  return mapped(tensors, [](const auto& entry) { return std::pair(entry.first, entry.second.clone()); });
}

inline bool are_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b, [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); });
}
inline bool are_equal(const NamedTensors& a, const NamedTensors& b) {
  return names(a) == names(b) && are_equal(values(a), values(b));
}

/// Of all elements; NaN if one is NaN, infinity if the lists have not the same tensors.
inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0 : (a - b).abs().max().item<double>();
}
inline double largest_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double largest = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; std::isfinite(largest) && i < a.size(); ++i) {
    const double here = largest_difference(a[i], b[i]);
    largest = here <= largest ? largest : here;
  }
  return largest;
}
inline double largest_difference(const NamedTensors& a, const NamedTensors& b) {
  return names(a) == names(b) ? largest_difference(values(a), values(b)) : std::numeric_limits<double>::infinity();
}

inline void expect_equal(const NamedTensors& found, const NamedTensors& expected) {
  ASSERT_EQ(names(found), names(expected));
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].second.scalar_type(), expected[i].second.scalar_type()) << found[i].first;
    EXPECT_EQ(found[i].second.sizes(), expected[i].second.sizes()) << found[i].first;
    EXPECT_TRUE(at::equal(found[i].second.to(at::kDouble), expected[i].second.to(at::kDouble))) << found[i].first;
  }
}

}  // namespace lockstep
