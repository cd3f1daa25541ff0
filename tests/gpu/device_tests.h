// One body for two tests: on the GPU, and on the CPU, which shows on every machine that the body works.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/config/train_config.h>

#include "support/larger_or_nan.h"
#include "support/requirements.h"

/// Defines SUITEOnGpu.NAME and SUITEOnCpu.NAME. The body follows; `where` says on which device it runs.
#define LOCKSTEP_DEVICE_TEST(suite, name)                         \
  static void suite##_##name(ComputeSetup where);                 \
  TEST(suite##OnGpu, name) {                                      \
    LOCKSTEP_REQUIRE(Requirements().gpus(1));                     \
    suite##_##name(ComputeSetup::gpu);                            \
  }                                                               \
  TEST(suite##OnCpu, name) { suite##_##name(ComputeSetup::cpu); } \
  static void suite##_##name([[maybe_unused]] ComputeSetup where)

namespace lockstep {

/// The largest relative difference of two rows of losses; NaN if one is NaN.
inline double worst_difference(const std::vector<double>& found, const std::vector<double>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    worst = larger_or_nan(worst, std::abs(found[i] - expected[i]) / std::abs(expected[i]));
  }
  return worst;
}

}  // namespace lockstep
