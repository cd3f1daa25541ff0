#include "data/step_plan.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/captured_stderr.h"
#include "support/message_of.h"

namespace lockstep {
namespace {

using Ids = std::vector<std::int64_t>;

struct Case {
  std::int64_t size;
  std::int64_t global_batch;
  std::int64_t batch_size;
  int world_size;
  bool drop_last = false;
  SampleOrder order = SampleOrder::keyed;
};

std::string describe(const Case& setup) {
  return "size " + std::to_string(setup.size) + " G " + std::to_string(setup.global_batch) + " b " +
         std::to_string(setup.batch_size) + " W " + std::to_string(setup.world_size) +
         (setup.drop_last ? " drop_last" : "");
}

StepPlanner planner(const Case& setup, int rank) {
  return StepPlanner({.size = setup.size,
                      .global_batch = setup.global_batch,
                      .world_size = setup.world_size,
                      .seed = 7,
                      .sampler = {.order = setup.order, .drop_last = setup.drop_last}},
                     setup.batch_size, rank);
}

std::vector<StepPlanner> planners(const Case& setup) {
  std::vector<StepPlanner> ranks;
  for (int rank = 0; rank < setup.world_size; ++rank) {
    ranks.push_back(planner(setup, rank));
  }
  return ranks;
}

/// The plans of all ranks for one step, which agree on everything that must be agreed on.
std::vector<StepPlan> next_step(std::vector<StepPlanner>& ranks) {
  std::vector<StepPlan> plans(ranks.size());
  std::int64_t samples = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    StepPlan& plan = plans[rank];
    ranks[rank].next(plan);
    samples += static_cast<std::int64_t>(plan.ids.size());
    EXPECT_EQ(plan.micro_batches, plans[0].micro_batches);
    EXPECT_EQ(plan.global_samples, plans[0].global_samples);
    EXPECT_EQ(plan.epoch, plans[0].epoch);
    EXPECT_EQ(plan.ends_epoch, plans[0].ends_epoch);
    EXPECT_EQ(plan.after, plans[0].after);
  }
  EXPECT_EQ(samples, plans[0].global_samples);
  return plans;
}

/// Ids in the order rank 0's, rank 1's, ...; read through the micro-batches.
void append_ids(const std::vector<StepPlan>& plans, Ids& ids) {
  for (const StepPlan& plan : plans) {
    Ids of_rank;
    for (std::size_t micro = 0; micro < plan.micro_batches; ++micro) {
      const auto part = plan.micro_ids(micro);
      EXPECT_LE(part.size(), static_cast<std::size_t>(plan.batch_size));
      of_rank.insert(of_rank.end(), part.begin(), part.end());
    }
    EXPECT_EQ(of_rank, plan.ids);
    ids.insert(ids.end(), of_rank.begin(), of_rank.end());
  }
}

Ids epoch_ids(const Case& setup, std::int64_t epoch) {
  auto ranks = planners(setup);
  for (StepPlanner& rank : ranks) {
    rank.seek({.epoch = epoch});
  }
  Ids ids;
  for (bool over = false; !over;) {
    const auto plans = next_step(ranks);
    EXPECT_EQ(plans[0].epoch, epoch);
    append_ids(plans, ids);
    over = plans[0].ends_epoch;
  }
  return ids;
}

bool each_at_most_once(Ids ids, std::int64_t size) {
  std::sort(ids.begin(), ids.end());
  return std::adjacent_find(ids.begin(), ids.end()) == ids.end() && ids.front() >= 0 && ids.back() < size;
}

std::vector<Case> sweep() {
  std::vector<Case> setups;
  for (const int world_size : {1, 2, 3, 4}) {
    for (const std::int64_t size : {1, 7, 97, 120}) {
      for (const std::int64_t global_batch : {1, 5, 12, 32}) {
        for (const std::int64_t batch_size : {1, 2, 3, 32}) {
          for (const bool drop_last : {false, true}) {
            if (!drop_last || global_batch <= size) {
              setups.push_back({size, global_batch, batch_size, world_size, drop_last});
            }
          }
        }
      }
    }
  }
  return setups;
}

TEST(StepPlanner, VisitsEverySampleOncePerEpochWhateverTheSizes) {
  for (const Case& setup : sweep()) {
    for (const std::int64_t epoch : {0, 1}) {
      const Ids ids = epoch_ids(setup, epoch);
      const std::int64_t expected = setup.drop_last ? setup.size / setup.global_batch * setup.global_batch : setup.size;
      ASSERT_EQ(static_cast<std::int64_t>(ids.size()), expected) << describe(setup);
      ASSERT_TRUE(each_at_most_once(ids, setup.size)) << describe(setup);
    }
  }
}

TEST(StepPlanner, ControlDetectsRepeatedSamples) {
  // The pytorch order pads 7 samples to 8 for two ranks.
  const Ids ids =
      epoch_ids({.size = 7, .global_batch = 4, .batch_size = 2, .world_size = 2, .order = SampleOrder::pytorch}, 0);
  EXPECT_EQ(ids.size(), 8U);
  EXPECT_FALSE(each_at_most_once(ids, 7));
}

TEST(StepPlanner, TakesTheSameSamplesInEveryStepAtEveryWorldSize) {
  for (const Case& setup : sweep()) {
    Case alone = setup;
    alone.world_size = 1;
    auto ranks = planners(setup);
    auto reference = planners(alone);
    for (int step = 0; step < 5; ++step) {
      Ids ids;
      Ids expected;
      append_ids(next_step(ranks), ids);
      append_ids(next_step(reference), expected);
      ASSERT_EQ(ids, expected) << describe(setup) << " step " << step;
    }
  }
}

TEST(StepPlanner, CutsABlockIntoAsManyMicroBatchesOnEveryRank) {
  const struct {
    std::int64_t samples;
    int world_size;
    std::int64_t batch_size;
    std::vector<std::vector<std::size_t>> sizes;  // [rank][micro-batch]
  } cases[] = {
      {8, 1, 4, {{4, 4}}},         {8, 1, 3, {{3, 3, 2}}},
      {10, 3, 4, {{4}, {3}, {3}}}, {10, 3, 3, {{3, 1}, {3, 0}, {3, 0}}},
      {2, 3, 4, {{1}, {1}, {0}}},  {5, 2, 1, {{1, 1, 1}, {1, 1, 0}}},
      {7, 2, 64, {{4}, {3}}},
  };
  for (const auto& [samples, world_size, batch_size, sizes] : cases) {
    auto ranks = planners({samples, samples, batch_size, world_size});
    const auto plans = next_step(ranks);
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      std::vector<std::size_t> found;
      for (std::size_t micro = 0; micro < plans[rank].micro_batches; ++micro) {
        found.push_back(plans[rank].micro_ids(micro).size());
      }
      EXPECT_EQ(found, sizes[rank]) << samples << " samples, batch size " << batch_size << ", rank " << rank;
    }
  }
}

TEST(StepPlanner, NormalizesTheEndOfAnEpoch) {
  StepPlanner plain = planner({10, 4, 4, 1}, 0);
  StepPlan plan;
  const std::string order = "shuffled order (keyed, seed 7)";
  const std::vector<LoaderPosition> expected = {
      {0, 4, 10, 4, order}, {0, 8, 10, 4, order}, {1, 0, 10, 4}, {1, 4, 10, 4, order}};
  for (const LoaderPosition& position : expected) {
    plain.next(plan);
    EXPECT_EQ(plain.with_order(plan.after), position);
    EXPECT_EQ(plain.position(), position);
    EXPECT_EQ(plan.ends_epoch, position.consumed == 0);
  }
  StepPlanner dropping =
      planner({.size = 10, .global_batch = 4, .batch_size = 4, .world_size = 1, .drop_last = true}, 0);
  dropping.seek({.consumed = 8});
  EXPECT_EQ(dropping.position(), (LoaderPosition{1, 0, 10, 4}));
  dropping.seek({.consumed = 9});  // saved with another global batch
  EXPECT_EQ(dropping.position(), (LoaderPosition{1, 0, 10, 4}));
}

TEST(StepPlanner, ContinuesFromEveryPosition) {
  const Case setup{.size = 23, .global_batch = 5, .batch_size = 2, .world_size = 3};
  for (int rank = 0; rank < setup.world_size; ++rank) {
    StepPlanner straight = planner(setup, rank);
    for (int step = 0; step < 12; ++step) {
      StepPlanner resumed = planner(setup, rank);
      resumed.seek(straight.position());
      StepPlan expected;
      StepPlan found;
      straight.next(expected);
      resumed.next(found);
      EXPECT_EQ(found.ids, expected.ids) << "rank " << rank << " step " << step;
      EXPECT_EQ(found.after, expected.after);
    }
  }
}

TEST(StepPlanner, KeepsAnEpochWholeWhenTheRanksChangeInside) {
  auto before = planners({.size = 97, .global_batch = 10, .batch_size = 3, .world_size = 4});
  auto after = planners({.size = 97, .global_batch = 10, .batch_size = 3, .world_size = 3});
  Ids ids;
  for (int step = 0; step < 4; ++step) {
    append_ids(next_step(before), ids);
  }
  for (StepPlanner& rank : after) {
    rank.seek(before[0].position());
  }
  while (ids.size() < 97) {
    append_ids(next_step(after), ids);
  }
  EXPECT_TRUE(each_at_most_once(ids, 97));
  EXPECT_EQ(after[0].position(), (LoaderPosition{1, 0, 97, 10}));
}

TEST(StepPlanner, KeepsTheGlobalBatchOfAPositionUnlessOneWasSet) {
  const DistributedSampler::Options options{.size = 100, .global_batch = 10, .world_size = 3};
  const LoaderPosition saved{.epoch = 0, .consumed = 30, .dataset_size = 100, .global_batch = 15};
  const struct {
    bool keep_global_batch;
    std::int64_t samples;
    std::size_t micro_batches;
  } cases[] = {{true, 10, 2}, {false, 15, 3}};
  for (const auto& [keep_global_batch, samples, micro_batches] : cases) {
    StepPlanner ours(options, /*batch_size=*/2, /*rank=*/0, keep_global_batch);
    EXPECT_THROW(ours.seek({.consumed = 30, .dataset_size = 99, .global_batch = 15}), CheckpointError);
    EXPECT_EQ(ours.steps_per_epoch(), 10) << "a refused seek changes nothing";
    ours.seek(saved);
    StepPlan plan;
    ours.next(plan);
    EXPECT_EQ(plan.global_samples, samples);
    EXPECT_EQ(plan.micro_batches, micro_batches);
    EXPECT_EQ(ours.position(), (LoaderPosition{0, 30 + samples, 100, samples, "shuffled order (keyed, seed 42)"}));
    EXPECT_EQ(ours.steps_per_epoch(), 100 / samples + (100 % samples != 0 ? 1 : 0));
  }
}

TEST(StepPlanner, TakesAPartOfTheStepsOfAPass) {
  const DistributedSampler::Options options{.size = 105, .global_batch = 10, .world_size = 3};  // 11 steps
  const struct {
    double percent;
    std::int64_t steps;
  } cases[] = {{0.01, 1}, {10, 1}, {25, 3}, {29, 3}, {50, 6}, {99, 11}, {100, 11}};
  for (const auto& [percent, steps] : cases) {
    StepPlanner planner(options, /*batch_size=*/4, /*rank=*/2, /*keep_global_batch=*/true, StepCount::percent(percent));
    EXPECT_EQ(planner.steps_per_epoch(), steps) << percent;
    StepPlan plan;
    for (std::int64_t step = 1; step <= 2 * steps; ++step) {
      planner.next(plan);
      EXPECT_EQ(plan.ends_epoch, step % steps == 0) << percent;
    }
    EXPECT_EQ(planner.position(), (LoaderPosition{2, 0, 105, 10}));
  }
}

TEST(StepPlanner, MakesShortEpochsLonger) {
  const DistributedSampler::Options options{.size = 105, .global_batch = 10, .world_size = 3};  // 11 steps
  const auto planner_of = [&](StepCount steps, std::int64_t least) {
    return StepPlanner(options, /*batch_size=*/4, /*rank=*/2, /*keep_global_batch=*/true, steps, least);
  };
  EXPECT_EQ(planner_of({}, 5).steps_per_epoch(), 11) << "it is no maximum";
  EXPECT_EQ(planner_of(StepCount::percent(50), 8).steps_per_epoch(), 8);
  StepPlanner longer = planner_of({}, 25);
  StepPlanner exact = planner_of(25, 0);
  EXPECT_EQ(longer.steps_per_epoch(), 25);
  StepPlan plan;
  StepPlan expected;
  for (int step = 1; step <= 60; ++step) {
    longer.next(plan);
    exact.next(expected);
    EXPECT_EQ(plan.ids, expected.ids);
    EXPECT_EQ(plan.ends_epoch, step % 25 == 0);
    StepPlanner resumed = planner_of({}, 25);
    resumed.seek(longer.position());
    EXPECT_EQ(resumed.position(), exact.position()) << "also in a later pass";
  }
}

// The part is one of the steps that the epoch has with the kept global batch.
TEST(StepPlanner, KeepsAPartOfAnEpochOnAnotherNumberOfRanks) {
  const LoaderPosition saved{.epoch = 1, .consumed = 40, .dataset_size = 105, .global_batch = 10};
  for (const int ranks : {1, 2, 3, 4}) {
    const DistributedSampler::Options planned{.size = 105, .global_batch = 20 * ranks, .world_size = ranks};
    StepPlanner keeps(planned, /*batch_size=*/20, /*rank=*/0, /*keep_global_batch=*/false, StepCount::percent(50));
    keeps.seek(saved);
    EXPECT_EQ(keeps.steps_per_epoch(), 6);
    StepPlan plan;
    keeps.next(plan);
    EXPECT_FALSE(plan.ends_epoch);
    keeps.next(plan);
    EXPECT_TRUE(plan.ends_epoch);
  }
}

TEST(StepPlanner, AcceptsPositionsThatThePlannedGlobalBatchDoesNotReach) {
  const DistributedSampler::Options options{.size = 16, .global_batch = 4, .world_size = 1};
  const LoaderPosition saved{.epoch = 0,
                             .consumed = 72,  // step 9 of 10
                             .dataset_size = 16,
                             .global_batch = 8,
                             .state = "shuffled order (keyed, seed 42)"};
  StepPlan plan;
  StepPlanner takes(options, /*batch_size=*/4, /*rank=*/0, /*keep_global_batch=*/false, /*steps_per_epoch=*/10);
  takes.seek(saved);
  EXPECT_EQ(takes.position(), saved);
  takes.next(plan);
  EXPECT_EQ(plan.global_samples, 8);
  EXPECT_TRUE(plan.ends_epoch);
  StepPlanner keeps(options, /*batch_size=*/4, /*rank=*/0, /*keep_global_batch=*/true, /*steps_per_epoch=*/10);
  keeps.seek(saved);
  EXPECT_EQ(keeps.position(), (LoaderPosition{1, 0, 16, 4})) << "an epoch has 40 samples";

  // The same with drop_last and an order that is longer than the data set.
  DistributedSampler::Options longer{
      .size = 100,
      .order = custom_order(200, [](std::uint64_t, std::int64_t) { return Ids(200, 7); }),
      .global_batch = 10,
      .world_size = 1,
      .sampler = {.drop_last = true}};
  StepPlanner before(longer, /*batch_size=*/10, /*rank=*/0);
  for (int step = 0; step < 19; ++step) {
    before.next(plan);
  }
  longer.global_batch = 150;
  StepPlanner after(longer, /*batch_size=*/10, /*rank=*/0, /*keep_global_batch=*/false);
  after.seek(before.position());
  EXPECT_EQ(after.position(), before.position());
}

// With drop_last the length of a pass depends on the global batch: 90 samples with 30, 80 with 40.
TEST(StepPlanner, ContinuesALaterPassWithAnotherGlobalBatch) {
  const auto planner_of = [](std::int64_t global_batch) {
    return StepPlanner(
        {.size = 100, .global_batch = global_batch, .world_size = 1, .sampler = {.shuffle = false, .drop_last = true}},
        /*batch_size=*/40, /*rank=*/0, /*keep_global_batch=*/true, /*steps_per_epoch=*/10);
  };
  StepPlanner before = planner_of(30);
  StepPlan plan;
  for (int step = 0; step < 4; ++step) {
    before.next(plan);
  }
  EXPECT_THAT(plan.ids, testing::AllOf(testing::SizeIs(30), testing::Contains(0), testing::Contains(29)));
  StepPlanner after = planner_of(40);
  after.seek(before.position());
  after.next(plan);
  EXPECT_EQ(plan.pass, std::int64_t{1} << 32);
  EXPECT_THAT(plan.ids, testing::AllOf(testing::SizeIs(40), testing::Contains(30), testing::Contains(69)));
  after.next(plan);  // 10 samples were left, which is no step
  EXPECT_EQ(plan.pass, std::int64_t{2} << 32);
  EXPECT_THAT(plan.ids, testing::AllOf(testing::SizeIs(40), testing::Contains(0), testing::Contains(39)));
  StepPlanner back = planner_of(30);
  back.seek(after.position());
  back.next(plan);
  EXPECT_EQ(plan.pass, std::int64_t{2} << 32);
  EXPECT_THAT(plan.ids, testing::AllOf(testing::SizeIs(30), testing::Contains(40), testing::Contains(69)));

  before.next(plan);  // 60 of the second pass, which is all of it with a global batch of 60
  StepPlanner shorter = planner_of(60);
  shorter.seek(before.position());
  shorter.next(plan);
  EXPECT_EQ(plan.pass, std::int64_t{2} << 32);
  EXPECT_THAT(plan.ids, testing::AllOf(testing::SizeIs(60), testing::Contains(0), testing::Contains(59)));
  EXPECT_THAT(
      message_of([&] { shorter.seek({.epoch = 0, .consumed = 120, .dataset_size = 100, .global_batch = 1000}); }),
      testing::HasSubstr("leaves no samples: the data set has 100, a step needs 1000"));
}

TEST(StepPlanner, WithDropLastHasOnlyWholeStepsAfterEverySeek) {
  const CapturedStderr quiet;  // each seek says that the global batch is another one
  const auto longer = custom_order(71, [](std::uint64_t, std::int64_t) { return Ids(71, 3); });
  struct Order {
    SampleOrder kind;
    std::shared_ptr<const EpochOrder> own{};
  };
  struct Batches {
    std::int64_t before;
    std::int64_t after;
  };
  for (const auto& [kind, own] : {Order{SampleOrder::keyed}, {SampleOrder::pytorch}, {SampleOrder::keyed, longer}}) {
    for (const StepCount steps_per_epoch : {StepCount(), StepCount(3), StepCount(17)}) {
      for (const auto& [first, second] : {Batches{8, 10}, {10, 8}, {6, 40}}) {
        const auto planner_of = [&, kind = kind, own = own](std::int64_t global_batch) {
          return StepPlanner({.size = 53,
                              .order = own,
                              .global_batch = global_batch,
                              .world_size = 2,
                              .sampler = {.order = kind, .drop_last = true}},
                             /*batch_size=*/5, /*rank=*/1, /*keep_global_batch=*/true, steps_per_epoch);
        };
        StepPlanner before = planner_of(first);
        StepPlan plan;
        for (int step = 1; step <= 20; ++step) {
          before.next(plan);
          StepPlanner after = planner_of(second);
          after.seek(before.position());
          for (int later = 1; later <= 20; ++later) {
            const LoaderPosition start = after.position();
            after.next(plan);
            ASSERT_EQ(plan.global_samples, second) << "batch " << first << " step " << step << " later " << later;
            ASSERT_EQ(std::ssize(plan.ids), second / 2);
            ASSERT_EQ(after.position().epoch, start.epoch + (plan.ends_epoch ? 1 : 0));
          }
        }
      }
    }
  }
}

// 24 of 53 samples in steps of 8, and then two steps of 10.
TEST(StepPlanner, WithDropLastEndsAnEpochThatHasNoWholeStepLeft) {
  const auto planner_of = [](std::int64_t global_batch) {
    return StepPlanner(
        {.size = 53, .global_batch = global_batch, .world_size = 1, .sampler = {.shuffle = false, .drop_last = true}},
        /*batch_size=*/10, /*rank=*/0);
  };
  StepPlanner before = planner_of(8);
  StepPlan plan;
  for (int step = 0; step < 3; ++step) {
    before.next(plan);
  }
  StepPlanner after = planner_of(10);
  after.seek(before.position());
  std::vector<std::int64_t> firsts;
  std::vector<bool> ends;
  for (int step = 0; step < 3; ++step) {
    after.next(plan);
    firsts.push_back(plan.ids.front());
    ends.push_back(plan.ends_epoch);
  }
  EXPECT_THAT(firsts, testing::ElementsAre(24, 34, 0));
  EXPECT_THAT(ends, testing::ElementsAre(false, true, false));
}

// The epoch is in the lower 32 bits of the number of a later pass.
TEST(StepPlanner, TellsAnOrderEachPassOfAnEpoch) {
  Ids asked;
  const auto order = custom_order(8, [&](std::uint64_t, std::int64_t epoch) {
    asked.push_back(epoch);
    return Ids(8, 3);
  });
  StepPlanner planner({.size = 8, .order = order, .global_batch = 4, .world_size = 1}, /*batch_size=*/4, /*rank=*/0,
                      /*keep_global_batch=*/true, /*steps_per_epoch=*/5);
  asked.clear();  // its description has asked for the first
  planner.seek({.epoch = 3});
  StepPlan plan;
  for (int step = 0; step < 6; ++step) {
    planner.next(plan);
  }
  constexpr std::int64_t kPass = std::int64_t{1} << 32;
  EXPECT_THAT(asked, testing::ElementsAre(3, 3 + kPass, 3 + 2 * kPass, 4));
}

TEST(StepPlanner, RefusesAnotherOrderInTheMiddleOfAnEpoch) {
  const auto reversed = custom_order(100, [](std::uint64_t, std::int64_t) {
    Ids ids(100);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = 99 - static_cast<std::int64_t>(i);
    }
    return ids;
  });
  const DistributedSampler::Options plain{.size = 100, .global_batch = 10, .world_size = 2, .seed = 7};
  DistributedSampler::Options seed = plain;
  seed.seed = 8;
  DistributedSampler::Options pytorch = plain;
  pytorch.sampler.order = SampleOrder::pytorch;
  DistributedSampler::Options in_order = plain;
  in_order.sampler.shuffle = false;
  DistributedSampler::Options own = plain;
  own.order = reversed;
  const std::vector<DistributedSampler::Options> all{plain, seed, pytorch, in_order, own};
  StepPlan plan;
  for (std::size_t before = 0; before < all.size(); ++before) {
    StepPlanner saved(all[before], /*batch_size=*/5, /*rank=*/0);
    saved.next(plan);
    for (std::size_t now = 0; now < all.size(); ++now) {
      StepPlanner resumed(all[now], /*batch_size=*/5, /*rank=*/0);
      if (now == before) {
        resumed.seek(saved.position());
        EXPECT_EQ(resumed.position(), saved.position());
      } else {
        EXPECT_THROW(resumed.seek(saved.position()), CheckpointError) << before << " and " << now;
        EXPECT_EQ(resumed.position().consumed, 0) << "a refused seek changes nothing";
      }
    }
  }
  StepPlanner shuffled(plain, /*batch_size=*/5, /*rank=*/0);
  shuffled.next(plan);
  EXPECT_THAT(message_of<CheckpointError>([&] { StepPlanner(in_order, 5, 0).seek(shuffled.position()); }),
              testing::StartsWith("checkpoint position in the middle of an epoch: found the shuffled order (keyed, "
                                  "seed 7), expected the order of the data | until the end of the epoch keep --seed"));
  while (!plan.ends_epoch) {
    shuffled.next(plan);
  }
  StepPlanner next_epoch(in_order, /*batch_size=*/5, /*rank=*/0);
  next_epoch.seek(shuffled.position());
  next_epoch.next(plan);
  EXPECT_THAT(plan.ids, testing::ElementsAre(0, 1, 2, 3, 4)) << "at the end of an epoch the order may change";
  EXPECT_EQ(plan.epoch, 1);
}

TEST(StepPlanner, RejectsAnOrderWithoutPositions) {
  class Nothing final : public EpochOrder {
   public:
    std::int64_t length() const override { return 0; }
    void fill(const OrderKey&, std::int64_t, std::span<std::int64_t>) const override {}
  };
  const DistributedSampler::Options options{
      .size = 16, .order = std::make_shared<Nothing>(), .global_batch = 4, .world_size = 1};
  EXPECT_THROW(StepPlanner(options, /*batch_size=*/4, /*rank=*/0), DataError);
}

TEST(StepPlanner, WarnsAboutAnotherGlobalBatchThanPlanned) {
  const DistributedSampler::Options options{.size = 1000, .global_batch = 16, .world_size = 1};
  const LoaderPosition saved{.epoch = 0, .consumed = 64, .dataset_size = 1000, .global_batch = 64};
  for (const int rank : {0, 1}) {
    CapturedStderr captured;
    StepPlanner(options, /*batch_size=*/16, rank, /*keep_global_batch=*/false).seek(saved);
    EXPECT_EQ(captured.text(),
              rank == 0
                  ? "warning: using the checkpoint's global batch of 64 instead of the planned 16: each rank has 4 "
                    "micro-batches of at most 16 samples per step; --global_batch_size 16 changes it\n"
                  : "");
  }
  CapturedStderr captured;
  StepPlanner(options, /*batch_size=*/16, /*rank=*/0, /*keep_global_batch=*/false)
      .seek({.epoch = 0, .consumed = 64, .dataset_size = 1000, .global_batch = 16});
  EXPECT_EQ(captured.text(), "") << "it is what was planned";
}

TEST(StepPlanner, RejectsPositionsOfOtherDataSets) {
  const Case keyed{.size = 100, .global_batch = 10, .batch_size = 5, .world_size = 2};
  const Case pytorch{.size = 100, .global_batch = 10, .batch_size = 5, .world_size = 2, .order = SampleOrder::pytorch};
  const struct {
    Case setup;
    LoaderPosition position;
    std::string message;  // empty: accepted
  } cases[] = {
      {keyed, {3, 55, 100}, ""},
      {keyed, {3, 55, 0}, ""},
      {keyed, {0, 10, 120}, "checkpoint position: the data set has 100 samples, and that of the checkpoint had 120"},
      {keyed,
       {0, 10, 0, 10, "0 1 10"},
       "checkpoint position: it belongs to a source that is not a data set, such as a stream, and this source is a "
       "data set of 100 samples"},
      {keyed, {3, 0, 0, 10}, ""},
      {keyed, {0, 101, 100}, "checkpoint position: found epoch 0 with 101 samples consumed, expected 0 to 100"},
      {keyed, {0, -1, 100}, "checkpoint position: found epoch 0 with -1 samples consumed, expected 0 to 100"},
      {keyed, {-1, 0, 100}, "checkpoint position: found epoch -1 with 0 samples consumed, expected 0 to 100"},
      {pytorch, {3, 56, 100}, ""},
      {pytorch,
       {3, 55, 100},
       "checkpoint position: found 55 samples of the epoch consumed, expected a multiple of the 2 ranks"},
  };
  for (const auto& [setup, position, message] : cases) {
    StepPlanner ours = planner(setup, 0);
    std::string found;
    try {
      ours.seek(position);
    } catch (const CheckpointError& error) {
      found = error.what();
      EXPECT_EQ(error.exit_code(), ExitCode::bad_data);
      EXPECT_FALSE(error.hint().empty());
      EXPECT_EQ(ours.position(), (LoaderPosition{0, 0, 100, 10})) << "a refused seek changes nothing";
    }
    EXPECT_EQ(found, message);
  }
}

}  // namespace
}  // namespace lockstep
