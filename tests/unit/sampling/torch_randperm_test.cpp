#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/sampling/distributed_sampler.h>

#include "support/message_of.h"

namespace lockstep {
namespace {

std::uint64_t checksum(const std::vector<std::int64_t>& values) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum += static_cast<std::uint64_t>(values[i]) * (i + 1);
  }
  return sum;
}

// Printed by torch 2.11.0: torch.randperm(n, generator=torch.Generator().manual_seed(seed))
TEST(TorchRandperm, EqualsPyTorch) {
  struct Golden {
    std::int64_t n;
    std::uint64_t seed;
    std::vector<std::int64_t> first;
  };
  const std::vector<Golden> vectors = {
      {0, 3, {}},
      {1, 0, {0}},
      {2, 0, {0, 1}},
      {10, 0, {4, 1, 7, 5, 3, 9, 0, 8, 6, 2}},
      {10, 42, {2, 6, 1, 8, 4, 5, 0, 9, 3, 7}},
      {10, 18446744073709551615U, {1, 4, 6, 2, 0, 5, 8, 7, 9, 3}},
      {1000, 42, {542, 618, 816, 68, 94, 215, 60, 585, 942, 165}},
      {30'001, 7, {10691, 3893, 7384, 26625, 11600, 15616, 17253, 3708, 3325, 17634}},
  };
  for (const Golden& golden : vectors) {
    std::vector<std::int64_t> found = torch_randperm(golden.n, golden.seed);
    ASSERT_EQ(found.size(), static_cast<std::size_t>(golden.n));
    found.resize(golden.first.size());
    EXPECT_EQ(found, golden.first) << "n " << golden.n << " seed " << golden.seed;
  }
}

// (torch.randperm(n, generator=g) * torch.arange(1, n + 1)).sum()
TEST(TorchRandperm, EqualsPyTorchToTheLastElement) {
  EXPECT_EQ(checksum(torch_randperm(1000, 42)), 251382058U);
  EXPECT_EQ(checksum(torch_randperm(1'000'000, 123456789)), 250084749831894231U);
  EXPECT_NE(checksum(torch_randperm(1000, 43)), 251382058U) << "the control";
}

TEST(TorchRandperm, ReportsMissingMemory) {
  const auto error = error_of<DataError>([&] { torch_randperm(std::int64_t{1} << 61, 0); });
  EXPECT_THAT(error.what(), testing::HasSubstr("the order of 2305843009213693952 samples does not fit"));
  EXPECT_THAT(error.hint(), testing::HasSubstr("--sampler.order keyed"));
}

}  // namespace
}  // namespace lockstep
