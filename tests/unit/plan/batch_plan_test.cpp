#include "plan/batch_plan.h"

#include <algorithm>

#include <gmock/gmock.h>

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

struct Case {
  std::int64_t batch_size, accumulation, global_batch_size;
  int ranks;
  std::int64_t expected_accumulation, expected_global;
  const char* explanation;
};

BatchPlan plan_of(const Case& c, std::vector<Problem>& problems) {
  const TrainConfig config{
      .batch_size = c.batch_size, .accumulation = c.accumulation, .global_batch_size = c.global_batch_size};
  return plan_batch(config, c.ranks, problems);
}

TEST(BatchPlan, DerivesWhatIsNotSet) {
  const Case cases[] = {
      // b  A  G   W   A  G
      {16, 0, 0, 1, 1, 16, "16 = 16 per rank x 1 micro-batch x 1 rank"},
      {16, 0, 0, 4, 1, 64, "64 = 16 per rank x 1 micro-batch x 4 ranks"},
      {16, 3, 0, 2, 3, 96, "96 = 16 per rank x 3 micro-batches x 2 ranks"},
      {16, 0, 64, 2, 2, 64, "64 = 16 per rank x 2 micro-batches x 2 ranks"},
      {16, 0, 65, 2, 3, 65, "65 over 2 ranks (33 or 32 each), in 3 micro-batches of at most 16"},
      {16, 0, 1, 4, 1, 1, "1 over 4 ranks (1 or 0 each), in 1 micro-batch of at most 16"},
      {16, 2, 50, 2, 2, 50, "50 over 2 ranks (25 each), in 2 micro-batches of at most 16"},
      {16, 2, 33, 2, 2, 33, "33 over 2 ranks (17 or 16 each), in 2 micro-batches of at most 16"},
      {16, 2, 64, 2, 2, 64, "64 = 16 per rank x 2 micro-batches x 2 ranks"},
  };
  for (const Case& c : cases) {
    std::vector<Problem> problems;
    const BatchPlan plan = plan_of(c, problems);
    EXPECT_THAT(problems, IsEmpty());
    EXPECT_EQ(plan.batch_size, c.batch_size);
    EXPECT_EQ(plan.accumulation, c.expected_accumulation) << c.explanation;
    EXPECT_EQ(plan.global_batch_size, c.expected_global) << c.explanation;
    EXPECT_EQ(plan.global_is_given, c.global_batch_size > 0) << c.explanation;
    EXPECT_EQ(plan.explanation, c.explanation);
  }
}

TEST(BatchPlan, KeepsTheGlobalBatchWhenItsMicroBatchesAreHalved) {
  struct Halved {
    BatchPlan from;
    int times, ranks;
    std::int64_t batch_size, accumulation;
    const char* explanation;
  };
  const Halved cases[] = {
      {{.batch_size = 16, .accumulation = 1, .global_batch_size = 64},
       1,
       4,
       8,
       2,
       "64 = 8 per rank x 2 micro-batches x 4 ranks"},
      {{.batch_size = 16, .accumulation = 3, .global_batch_size = 48},
       2,
       1,
       4,
       12,
       "48 = 4 per rank x 12 micro-batches x 1 rank"},
      {{.batch_size = 5, .accumulation = 1, .global_batch_size = 10},
       1,
       2,
       3,
       2,
       "10 over 2 ranks (5 each), in 2 micro-batches of at most 3"},
      {{.batch_size = 2048, .accumulation = 1, .global_batch_size = 32},
       1,
       2,
       8,
       2,
       "32 = 8 per rank x 2 micro-batches x 2 ranks"},
      {{.batch_size = 2, .accumulation = 1, .global_batch_size = 2},
       30,
       1,
       1,
       2,
       "2 = 1 per rank x 2 micro-batches x 1 rank"},
  };
  for (const Halved& c : cases) {
    BatchPlan plan = c.from;
    for (int time = 0; time < c.times; ++time) {
      plan = halve_batch(plan, largest_micro_batch(plan, c.ranks), c.ranks);
    }
    EXPECT_EQ(plan.global_batch_size, c.from.global_batch_size) << c.explanation;
    EXPECT_EQ(plan.batch_size, c.batch_size) << c.explanation;
    EXPECT_EQ(plan.accumulation, c.accumulation) << c.explanation;
    EXPECT_EQ(plan.explanation, c.explanation);
  }
}

TEST(BatchPlan, OfAnotherBatchSizeKeepsTheGlobalBatchThatIsSetOrTheAccumulation) {
  const BatchPlan set{.batch_size = 100, .accumulation = 1, .global_batch_size = 200, .global_is_given = true};
  EXPECT_EQ(flags_of(with_batch_size(set, 16, 2)), "--batch_size 16 --accumulation 7 --global_batch_size 200");
  EXPECT_EQ(with_batch_size(set, 16, 2).explanation, "200 over 2 ranks (100 each), in 7 micro-batches of at most 16");
  const BatchPlan derived{.batch_size = 32, .accumulation = 3, .global_batch_size = 192};
  EXPECT_EQ(flags_of(with_batch_size(derived, 16, 2)), "--batch_size 16 --accumulation 3 --global_batch_size 96");
  EXPECT_EQ(largest_share(set, 3), 67);
}

TEST(BatchPlan, GivesEachRankItsShareInOneMicroBatchWhenOnlyTheGlobalBatchIsSet) {
  struct {
    std::int64_t global, accumulation;
    int ranks;
    std::int64_t expected_batch_size;
    const char* explanation;
  } const cases[] = {
      {0, 0, 4, 32, "128 = 32 per rank x 1 micro-batch x 4 ranks"},
      {0, 3, 1, 32, "96 = 32 per rank x 3 micro-batches x 1 rank"},
      {256, 0, 1, 256, "256 = 256 per rank x 1 micro-batch x 1 rank"},
      {256, 0, 4, 64, "256 = 64 per rank x 1 micro-batch x 4 ranks"},
      {256, 2, 4, 32, "256 = 32 per rank x 2 micro-batches x 4 ranks"},
      {65, 0, 2, 33, "65 over 2 ranks (33 or 32 each), in 1 micro-batch of at most 33"},
      {65, 2, 2, 17, "65 over 2 ranks (33 or 32 each), in 2 micro-batches of at most 17"},
      {1, 0, 4, 1, "1 over 4 ranks (1 or 0 each), in 1 micro-batch of at most 1"},
  };
  for (const auto& c : cases) {
    std::vector<Problem> problems;
    const BatchPlan plan =
        plan_batch({.accumulation = c.accumulation, .global_batch_size = c.global}, c.ranks, problems);
    EXPECT_THAT(problems, IsEmpty()) << c.explanation;
    EXPECT_EQ(plan.batch_size, c.expected_batch_size) << c.explanation;
    EXPECT_EQ(plan.accumulation, std::max<std::int64_t>(c.accumulation, 1)) << c.explanation;
    EXPECT_EQ(plan.explanation, c.explanation);
  }
}

TEST(BatchPlan, RefusesMoreMicroBatchesThanARankHasSamples) {
  std::vector<Problem> problems;
  plan_batch({.accumulation = 4, .global_batch_size = 5}, 2, problems);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].what, "--global_batch_size 5: 1 per rank x 4 micro-batches x 2 ranks = 8, expected 7 to 8");
}

TEST(BatchPlan, RefusesThreeThatDisagreeAndShowsTheSum) {
  for (const std::int64_t global : {32, 65}) {  // 33 to 64 agree
    std::vector<Problem> problems;
    plan_of({16, 2, global, 2, 0, 0, ""}, problems);
    ASSERT_EQ(problems.size(), 1U) << global;
    EXPECT_EQ(problems[0].what, "--global_batch_size " + std::to_string(global) +
                                    ": 16 per rank x 2 micro-batches x 2 ranks = 64, expected 33 to 64");
  }
}

TEST(BatchPlan, RefusesWhatDoesNotFit) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 61;
  for (const Case& c : {Case{kHuge, 0, 0, 4, 0, 0, ""}, Case{1 << 20, kHuge, 0, 1, 0, 0, ""}}) {
    std::vector<Problem> problems;
    plan_of(c, problems);
    ASSERT_EQ(problems.size(), 1U);
    EXPECT_THAT(problems[0].what, HasSubstr("does not fit into 64 bits"));
  }
}

TEST(BatchPlan, LeavesNonsenseToTheConfigurationsOwnCheck) {
  for (const Case& c : {Case{-1, 0, 0, 1, 0, 0, ""}, Case{1, -1, 0, 1, 0, 0, ""}, Case{1, 0, -5, 1, 0, 0, ""}}) {
    std::vector<Problem> problems;
    plan_of(c, problems);
    EXPECT_THAT(problems, IsEmpty());
  }
}

}  // namespace
}  // namespace lockstep
