#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/sampling/distributed_sampler.h>

#include "support/message_of.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<std::int64_t>;
using Options = DistributedSampler::Options;

Ids rank_ids(const DistributedSampler& sampler, std::int64_t epoch, std::int64_t consumed, int rank) {
  Ids ids = {-1, -1, -1};  // earlier content must not matter
  sampler.rank_ids(epoch, consumed, rank, ids);
  return ids;
}

// All ranks' ids of one step, rank after rank: in keyed order the step itself.
Ids step_ids(const DistributedSampler& sampler, int world_size, std::int64_t epoch, std::int64_t consumed) {
  Ids all;
  for (int rank = 0; rank < world_size; ++rank) {
    const Ids ids = rank_ids(sampler, epoch, consumed, rank);
    EXPECT_EQ(static_cast<std::int64_t>(ids.size()), sampler.rank_samples(consumed, rank));
    all.insert(all.end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(static_cast<std::int64_t>(all.size()), sampler.step_samples(consumed));
  return all;
}

// One rank's ids of a whole epoch.
Ids epoch_ids(const DistributedSampler& sampler, std::int64_t epoch, int rank) {
  Ids all;
  for (std::int64_t consumed = 0; consumed < sampler.epoch_length(); consumed += sampler.step_samples(consumed)) {
    const Ids ids = rank_ids(sampler, epoch, consumed, rank);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return all;
}

TEST(DistributedSampler, GivesEachRankAContiguousBlockOfTheStep) {
  const DistributedSampler sampler({.size = 100, .global_batch = 10, .world_size = 4, .sampler = {.shuffle = false}});
  EXPECT_THAT(rank_ids(sampler, 0, 20, 0), ElementsAre(20, 21, 22));
  EXPECT_THAT(rank_ids(sampler, 0, 20, 1), ElementsAre(23, 24, 25));
  EXPECT_THAT(rank_ids(sampler, 0, 20, 2), ElementsAre(26, 27));
  EXPECT_THAT(rank_ids(sampler, 0, 20, 3), ElementsAre(28, 29));
}

TEST(DistributedSampler, TakesTheRestInTheLastStep) {
  const DistributedSampler sampler({.size = 13, .global_batch = 10, .world_size = 4, .sampler = {.shuffle = false}});
  EXPECT_EQ(sampler.epoch_length(), 13);
  EXPECT_EQ(sampler.steps_per_epoch(), 2);
  EXPECT_EQ(sampler.step_samples(10), 3);
  EXPECT_THAT(rank_ids(sampler, 0, 10, 2), ElementsAre(12));
  EXPECT_THAT(rank_ids(sampler, 0, 10, 3), ElementsAre());
  EXPECT_EQ(sampler.step_samples(13), 0);
  EXPECT_EQ(sampler.rank_samples(13, 0), 0);
}

TEST(DistributedSampler, DropsTheLastStepWhenAsked) {
  const DistributedSampler sampler({.size = 13, .global_batch = 10, .world_size = 4, .sampler = {.drop_last = true}});
  EXPECT_EQ(sampler.epoch_length(), 10);
  EXPECT_EQ(sampler.steps_per_epoch(), 1);
  EXPECT_EQ(sampler.step_samples(10), 0);
}

TEST(DistributedSampler, ShufflesTheWholeSetBeforeDropping) {
  const DistributedSampler sampler({.size = 13, .global_batch = 10, .seed = 1, .sampler = {.drop_last = true}});
  std::set<std::int64_t> seen;
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    const Ids ids = epoch_ids(sampler, epoch, 0);
    seen.insert(ids.begin(), ids.end());
  }
  EXPECT_EQ(seen.size(), 13U);
}

TEST(DistributedSampler, IsTheKeyedPermutationAtAnyWorldSize) {
  const KeyedPermutation order(1000, 7, 2);
  for (const int world_size : {1, 2, 3, 7, 64}) {
    const DistributedSampler sampler({.size = 1000, .global_batch = 48, .world_size = world_size, .seed = 7});
    std::int64_t position = 0;
    while (position < sampler.epoch_length()) {
      for (const std::int64_t id : step_ids(sampler, world_size, 2, position)) {
        ASSERT_EQ(id, order(position)) << "world " << world_size << " position " << position;
        ++position;
      }
    }
    EXPECT_EQ(position, 1000);
  }
}

// Resuming with another world size at any position: every sample once, in the order of an uninterrupted run.
TEST(DistributedSampler, ContinuesAtAnyPositionWithAnyWorldSize) {
  const std::vector<int> worlds = {1, 2, 3, 4, 6, 8};
  const auto options = [](int world_size) {
    return Options{.size = 203, .global_batch = 24, .world_size = world_size};
  };
  const Ids undisturbed = epoch_ids(DistributedSampler(options(1)), 5, 0);
  int cases = 0;
  for (const int before : worlds) {
    for (const int after : worlds) {
      for (std::int64_t stop = 0; stop <= 9; ++stop) {
        Ids all;
        std::int64_t consumed = 0;
        for (std::int64_t step = 0; consumed < 203; ++step) {
          const int world_size = step < stop ? before : after;
          const Ids ids = step_ids(DistributedSampler(options(world_size)), world_size, 5, consumed);
          all.insert(all.end(), ids.begin(), ids.end());
          consumed += static_cast<std::int64_t>(ids.size());
        }
        ASSERT_EQ(all, undisturbed) << before << " ranks, then " << after << " from step " << stop;
        ++cases;
      }
    }
  }
  EXPECT_EQ(cases, 360);
  Ids sorted = undisturbed;
  std::sort(sorted.begin(), sorted.end());
  Ids every(203);
  std::iota(every.begin(), every.end(), 0);
  EXPECT_EQ(sorted, every);
}

TEST(DistributedSampler, SeeksInASetTooLargeForATable) {
  const DistributedSampler sampler({.size = 1'000'000'000'000, .global_batch = 4, .world_size = 2});
  EXPECT_EQ(sampler.steps_per_epoch(), 250'000'000'000);
  EXPECT_THAT(rank_ids(sampler, 0, 0, 0), ElementsAre(849927121342, 767129721366));
  EXPECT_EQ(rank_ids(sampler, 0, 999'999'999'996, 1).back(), 379093153552);
}

// Printed by torch 2.11.0: DistributedSampler(range(10), 4, rank, shuffle, seed=42, drop_last), set_epoch(3)
TEST(DistributedSampler, EqualsPyTorchInPyTorchOrder) {
  struct Golden {
    bool shuffle;
    bool drop_last;
    std::vector<Ids> ranks;
  };
  const std::vector<Golden> vectors = {
      {true, true, {{7, 4}, {6, 9}, {5, 0}, {3, 8}}},
      {true, false, {{7, 4, 2}, {6, 9, 1}, {5, 0, 7}, {3, 8, 6}}},
      {false, true, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}},
      {false, false, {{0, 4, 8}, {1, 5, 9}, {2, 6, 0}, {3, 7, 1}}},
  };
  for (const Golden& golden : vectors) {
    const DistributedSampler sampler(
        {.size = 10,
         .global_batch = 4,
         .world_size = 4,
         .sampler = {.order = SampleOrder::pytorch, .shuffle = golden.shuffle, .drop_last = golden.drop_last}});
    EXPECT_EQ(sampler.epoch_length(), golden.drop_last ? 8 : 12);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(epoch_ids(sampler, 3, rank), golden.ranks[static_cast<std::size_t>(rank)]) << "rank " << rank;
      EXPECT_EQ(epoch_ids(sampler, 4, rank) == epoch_ids(sampler, 3, rank), !golden.shuffle) << "the control";
      const std::int64_t second_pass = 3 + (std::int64_t{1} << 32);
      EXPECT_EQ(epoch_ids(sampler, second_pass, rank) == epoch_ids(sampler, 3, rank), !golden.shuffle);
    }
  }
}

TEST(DistributedSampler, PadsAsOftenAsNeededInPyTorchOrder) {
  const DistributedSampler sampler(
      {.size = 3, .global_batch = 8, .world_size = 8, .sampler = {.order = SampleOrder::pytorch, .shuffle = false}});
  EXPECT_THAT(step_ids(sampler, 8, 0, 0), ElementsAre(0, 1, 2, 0, 1, 2, 0, 1));
}

TEST(DistributedSampler, DropsTheSmallerStepInPyTorchOrder) {
  const SamplerConfig config{.order = SampleOrder::pytorch, .drop_last = true};
  const DistributedSampler sampler({.size = 27, .global_batch = 8, .world_size = 2, .sampler = config});
  EXPECT_EQ(sampler.epoch_length(), 24);  // 13 for each rank, in batches of 4
  EXPECT_EQ(sampler.steps_per_epoch(), 3);
}

TEST(DistributedSampler, RejectsInvalidNumbers) {
  EXPECT_THAT(problems_of([] { DistributedSampler({.size = 9, .global_batch = 0, .world_size = 0}); }),
              ElementsAre(HasSubstr("DistributedSampler: global_batch is 0, expected 1 or more"),
                          HasSubstr("DistributedSampler: world_size is 0, expected 1 or more")));
  const DistributedSampler sampler({.size = 9, .global_batch = 3, .world_size = 3});
  for (const auto& [consumed, rank] : {std::pair(0, 3), std::pair(0, -1), std::pair(-1, 0)}) {
    EXPECT_THAT(message_of<ConfigError>([&, c = consumed, r = rank] { rank_ids(sampler, 0, c, r); }),
                HasSubstr("expected a rank from 0 to 2"));
  }
  EXPECT_THAT(message_of<ConfigError>([] { KeyedPermutation(-1, 42, 0); }), HasSubstr("size is -1"));
  EXPECT_THAT(message_of<ConfigError>([] { torch_randperm(-1, 42); }), HasSubstr("n is -1"));
}

TEST(DistributedSampler, RejectsInvalidOptions) {
  const SamplerConfig pytorch{.order = SampleOrder::pytorch};
  struct Case {
    Options options;
    const char* message;
  };
  const std::vector<Case> cases = {
      {{.size = 0}, "the data set is empty"},
      {{.size = 100, .global_batch = 10, .world_size = 4, .sampler = pytorch}, "the global batch of 10 on 4 ranks"},
      {{.size = 9, .global_batch = 10, .sampler = {.drop_last = true}}, "the data set has 9, a step needs 10"},
      {{.size = 9, .global_batch = 10, .world_size = 2, .sampler = {.order = SampleOrder::pytorch, .drop_last = true}},
       "the data set has 9, a step needs 10"},
  };
  for (const Case& wrong : cases) {
    const auto error = error_of<DataError>([&] { const DistributedSampler sampler(wrong.options); });
    EXPECT_THAT(error.what(), HasSubstr(wrong.message));
    EXPECT_FALSE(error.hint().empty());
  }
}

TEST(DistributedSampler, RejectsAnotherWorldSizeWithinAPyTorchEpoch) {
  const DistributedSampler sampler(
      {.size = 100, .global_batch = 9, .world_size = 3, .sampler = {.order = SampleOrder::pytorch}});
  Ids ids;
  EXPECT_THROW(sampler.rank_ids(0, 8, 0, ids), DataError);
  EXPECT_NO_THROW(sampler.rank_ids(0, 9, 0, ids));
}

}  // namespace
}  // namespace lockstep
