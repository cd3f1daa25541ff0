// What the ranks of a run saw, over interruptions and other numbers of ranks.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/world/world.h>

#include "support/sweep.h"
#include "support/thread_world.h"

namespace lockstep {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kSize = 203;

struct LedgerCase {
  std::string name{};
  LoaderPlan plan{};
  std::shared_ptr<const EpochOrder> order{};
  bool has_bad_samples = false;
};

std::vector<LedgerCase> setups() {
  const LoaderPlan plain{.batch = {.batch_size = 5, .global_batch_size = 24, .global_is_given = true},
                         .data = {.workers = 1, .prefetch = 1}};
  std::vector<double> weights(kSize);
  std::iota(weights.begin(), weights.end(), 1.0);
  Ids lengths(kSize);
  std::iota(lengths.rbegin(), lengths.rend(), 1);
  std::vector<LedgerCase> all = {
      {.name = "shuffled", .plan = plain},
      {.name = "part of an epoch", .plan = plain},
      {.name = "several passes", .plan = plain},
      {.name = "weighted", .plan = plain, .order = weighted_order(weights, {.samples = 150})},
      {.name = "by length", .plan = plain, .order = length_bucketed_order(lengths, 3)},
      {.name = "bad samples", .plan = plain, .has_bad_samples = true},
      {.name = "three tenths of an epoch", .plan = plain}};
  all[1].plan.data.steps_per_epoch = 5;
  all[2].plan.data.steps_per_epoch = 20;
  all[5].plan.data.max_bad_samples = 100;
  all[5].plan.data.check_finite = true;
  all[6].plan.data.steps_per_epoch = StepCount::percent(30);
  return all;
}

std::shared_ptr<Dataset> samples(bool some_are_bad) {
  return sample_dataset(kSize, [some_are_bad](std::int64_t id, std::uint64_t) -> Batch {
    if (some_are_bad && id % 10 == 0) {
      throw std::runtime_error("not an image");
    }
    return {.input = at::scalar_tensor(some_are_bad && id % 10 == 1 ? std::nan("") : static_cast<double>(id))};
  });
}

/// The ids of `steps` steps from a position on, rank after rank in each step, and where they end.
std::pair<std::vector<Ids>, LoaderPosition> run(const LedgerCase& setup, int world_size, const LoaderPosition& from,
                                                int steps) {
  std::vector<std::vector<Ids>> of_ranks(static_cast<std::size_t>(world_size));
  LoaderPosition end;
  thread_world(world_size, [&](World& world) {
    DataLoader loader(samples(setup.has_bad_samples), setup.plan, world, setup.order);
    loader.seek(from);
    for (int step = 0; step < steps; ++step) {
      Ids ids;
      const StepBatches& batches = *loader.next();
      for (const Batch& batch : batches.micro) {
        ids.insert(ids.end(), batch.ids.begin(), batch.ids.end());
        EXPECT_EQ(batch.samples, std::ssize(batch.ids));
      }
      EXPECT_EQ(batches.local_samples, std::ssize(ids));
      of_ranks[static_cast<std::size_t>(world.rank())].push_back(ids);
    }
    if (world.is_main()) {
      end = loader.position();
    }
  });
  std::vector<Ids> all(static_cast<std::size_t>(steps));
  for (std::size_t step = 0; step < all.size(); ++step) {
    for (const auto& rank : of_ranks) {
      all[step].insert(all[step].end(), rank[step].begin(), rank[step].end());
    }
  }
  return {all, end};
}

// Every pair of rank counts, stopped after a random step: the global batches are those of one undisturbed rank.
TEST(Ledger, IsTheSameForAllWorldSizesBeforeAndAfterAStop) {
  constexpr int kSteps = 26;  // into the third epoch, in the second of the longest
  Sweep sweep("sample ledgers");
  int controls = 0;
  for (const LedgerCase& setup : setups()) {
    const auto [expected, end] = run(setup, 1, {}, kSteps);
    const std::string order = run(setup, 1, {}, 1).second.state;  // which positions within an epoch name
    for (const int before : {1, 2, 3, 4, 6, 8}) {
      for (const int after : {1, 2, 3, 4, 6, 8}) {
        if (setup.name != "shuffled" && rounds(0) == 0 && (before + after) % 5 != 0) {
          continue;  // everyday: all pairs of the first, some of the others
        }
        const int stop = sweep.between(1, kSteps - 1);
        auto [ledger, position] = run(setup, before, {}, stop);
        const auto [rest, last] = run(setup, after, position, kSteps - stop);
        ledger.insert(ledger.end(), rest.begin(), rest.end());
        const bool kept = ledger == expected && last == end;
        sweep.count(kept);
        EXPECT_TRUE(kept) << setup.name << ": " << before << " ranks, then " << after << " from step " << stop;
        position.consumed += 1;
        position.state = order;
        controls += run(setup, 1, position, kSteps - stop).first != rest ? 1 : 0;
      }
    }
    if (setup.name == "shuffled" || setup.name == "by length") {
      Ids epoch;
      for (std::size_t step = 0; step < 9; ++step) {
        epoch.insert(epoch.end(), expected[step].begin(), expected[step].end());
      }
      std::sort(epoch.begin(), epoch.end());
      Ids every(kSize);
      std::iota(every.begin(), every.end(), 0);
      EXPECT_EQ(epoch, every) << setup.name;
    }
  }
  EXPECT_GE(sweep.points(), 36 + 5 * 6);
  EXPECT_EQ(sweep.lost(), 0);
  EXPECT_EQ(controls, sweep.points()) << "the control: a position that is off by one sample";
}

TEST(Ledger, ReplacesABadSampleByItsNeighbourOnAnyRank) {
  const auto [steps, end] = run(setups()[5], 1, {}, 9);
  std::vector<int> visits(kSize);
  for (const Ids& step : steps) {
    for (const std::int64_t id : step) {
      ++visits[static_cast<std::size_t>(id)];
    }
  }
  for (std::int64_t id = 0; id < kSize; ++id) {
    const int expected = id % 10 < 2 ? 0 : id % 10 == 2 ? 3 : 1;
    // 200 and 201 are bad and 202 is the last
    EXPECT_EQ(visits[static_cast<std::size_t>(id)], expected) << "sample " << id;
  }
}

TEST(Ledger, RefusesAnotherOrderInTheMiddleOfAnEpoch) {
  const auto all = setups();
  const auto [steps, position] = run(all[3], 1, {}, 2);
  EXPECT_THROW(run(all[0], 1, position, 1), CheckpointError);
  EXPECT_THROW(run(all[4], 1, position, 1), CheckpointError);
  LedgerCase other_batch = all[4];
  const auto [batches, in_epoch] = run(other_batch, 1, {}, 2);
  other_batch.plan.batch.global_batch_size = 12;
  EXPECT_THROW(run(other_batch, 1, in_epoch, 1), CheckpointError) << "buckets depend on the global batch";
  other_batch.plan.batch.global_is_given = false;
  EXPECT_EQ(run(other_batch, 1, in_epoch, 1).first, run(all[4], 2, in_epoch, 1).first) << "kept where not given";
}

TEST(Ledger, NamesTheRankWithAnotherOrder) {
  std::string message;
  try {
    thread_world(3, [](World& world) {
      const std::vector<double> weights(kSize, 1.0);
      std::vector<double> others = weights;
      others[0] = 50;
      DataLoader loader(samples(false), setups()[0].plan, world, weighted_order(world.rank() == 1 ? others : weights));
    });
  } catch (const CommError& error) {
    message = error.what();
  }
  EXPECT_THAT(message, testing::HasSubstr("rank 1 has other data: 203 samples, order of 203 samples"));
}

}  // namespace
}  // namespace lockstep
