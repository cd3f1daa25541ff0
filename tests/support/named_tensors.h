// Compares and copies named tensors.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/tensor/named_tensors.h>

namespace lockstep {

inline std::vector<std::string> names(const NamedTensors& tensors) {
  std::vector<std::string> result;
  for (const auto& [name, tensor] : tensors) {
    result.push_back(name);
  }
  return result;
}

/// As a checkpoint would: values, not aliases.
inline NamedTensors copies(const NamedTensors& tensors) {
  NamedTensors result;
  for (const auto& [name, tensor] : tensors) {
    result.emplace_back(name, tensor.clone());
  }
  return result;
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
