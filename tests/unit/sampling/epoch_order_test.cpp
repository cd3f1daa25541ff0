#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
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

Ids epoch_of(const EpochOrder& order, const OrderKey& key) {
  Ids ids(static_cast<std::size_t>(order.length()));
  order.fill(key, 0, ids);
  return ids;
}

bool is_every_sample_once(Ids ids) {
  std::sort(ids.begin(), ids.end());
  Ids every(ids.size());
  std::iota(every.begin(), every.end(), 0);
  return ids == every;
}

/// How many standard deviations a chi-square of the counts against the shares is above its mean.
double excess(const std::vector<double>& counts, const std::vector<double>& shares) {
  const double draws = std::accumulate(counts.begin(), counts.end(), 0.0);
  double chi_square = 0;
  double degrees = -1;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (shares[i] > 0) {
      const double expected = shares[i] * draws;
      chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
      degrees += 1;
    }
  }
  return (chi_square - degrees) / std::sqrt(2 * degrees);
}

constexpr double kRejected = 6;

// In every order, ranks take slices of one sequence, from any position.
TEST(EpochOrder, IsTheSameSequenceAtAnyWorldSizeAndFromAnyPosition) {
  std::vector<double> weights(101);
  std::iota(weights.begin(), weights.end(), 1.0);
  Ids lengths(101);
  std::iota(lengths.rbegin(), lengths.rend(), 5);
  const std::vector<std::shared_ptr<const EpochOrder>> orders = {
      weighted_order(weights),
      weighted_order(weights, {.samples = 250}),
      weighted_order(weights, {.samples = 60, .replacement = false}),
      length_bucketed_order(lengths, 2),
      custom_order(101,
                   [](std::uint64_t seed, std::int64_t epoch) {
                     Ids ids(101);
                     std::iota(ids.begin(), ids.end(), 0);
                     std::rotate(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>((seed + 3) % 101) + epoch,
                                 ids.end());
                     return ids;
                   }),
  };
  int cases = 0;
  for (const auto& order : orders) {
    const Ids expected = epoch_of(*order, {.seed = 9, .epoch = 2, .global_batch = 12});
    for (const int world_size : {1, 2, 3, 4, 6, 8}) {
      for (const std::int64_t start : {std::int64_t{0}, std::int64_t{7}, std::int64_t{24}, order->length() - 1}) {
        const DistributedSampler sampler(
            {.size = 101, .order = order, .global_batch = 12, .world_size = world_size, .seed = 9});
        ASSERT_EQ(sampler.epoch_length(), order->length());
        Ids all;
        Ids ids;
        for (std::int64_t at = start; at < sampler.epoch_length(); at += sampler.step_samples(at)) {
          for (int rank = 0; rank < world_size; ++rank) {
            sampler.rank_ids(2, at, rank, ids);
            all.insert(all.end(), ids.begin(), ids.end());
          }
        }
        EXPECT_EQ(all, Ids(expected.begin() + start, expected.end())) << world_size << " ranks from " << start;
        ++cases;
      }
    }
    EXPECT_NE(expected, epoch_of(*order, {.seed = 9, .epoch = 3, .global_batch = 12})) << "the control";
  }
  EXPECT_EQ(cases, 120);
}

TEST(EpochOrder, CannotBeCombinedWithPyTorchsOrder) {
  const std::vector<double> weights = {1, 2};
  EXPECT_THAT(message_of<DataError>([&] {
                const DistributedSampler sampler(
                    {.size = 2, .order = weighted_order(weights), .sampler = {.order = SampleOrder::pytorch}});
              }),
              HasSubstr("the program uses its own order"));
}

TEST(WeightedOrder, DrawsInProportionToTheWeights) {
  const std::vector<double> weights = {1, 0, 2, 0.5, 6.5, 1e-300, 90};
  std::vector<double> shares = weights;
  for (double& share : shares) {
    share /= 100;
  }
  const auto order = weighted_order(weights, {.samples = 1'000'000});
  std::vector<double> counts(weights.size());
  for (const std::int64_t id : epoch_of(*order, {.seed = 3})) {
    ++counts.at(static_cast<std::size_t>(id));
  }
  EXPECT_EQ(counts[1], 0);
  EXPECT_EQ(counts[5], 0);
  counts[5] = shares[5] = 0;
  EXPECT_LT(excess(counts, shares), kRejected);
  std::vector<double> other = {0.011, 0, 0.02, 0.005, 0.065, 0, 0.899};
  EXPECT_GT(excess(counts, other), kRejected) << "the control";
}

TEST(WeightedOrder, HasIndependentDrawsAndEpochs) {
  const std::vector<double> weights = {1, 2, 3, 4};
  std::vector<double> shares;
  for (const double a : weights) {
    for (const double b : weights) {
      shares.push_back(a * b / 100);
    }
  }
  const auto order = weighted_order(weights, {.samples = 200'000});
  const Ids ids = epoch_of(*order, {.epoch = 0});
  const Ids next = epoch_of(*order, {.epoch = 1});
  std::vector<double> neighbours(16);
  std::vector<double> epochs(16);
  std::vector<double> same(16);
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
    ++neighbours[static_cast<std::size_t>(ids[i] * 4 + ids[i + 1])];
    ++epochs[static_cast<std::size_t>(ids[i] * 4 + next[i])];
    ++same[static_cast<std::size_t>(ids[i] * 4 + ids[i])];
  }
  EXPECT_LT(excess(neighbours, shares), kRejected);
  EXPECT_LT(excess(epochs, shares), kRejected);
  EXPECT_GT(excess(same, shares), kRejected) << "the control";
}

// The distribution of successive draws: first a, then b from the rest.
TEST(WeightedOrder, DrawsWithoutReplacementLikeSuccessiveDraws) {
  const std::vector<double> weights = {1, 2, 3, 4, 0};
  const auto order = weighted_order(weights, {.samples = 3, .replacement = false});
  std::vector<double> shares;
  for (std::size_t a = 0; a < 4; ++a) {
    for (std::size_t b = 0; b < 4; ++b) {
      shares.push_back(a == b ? 0 : weights[a] / 10 * weights[b] / (10 - weights[a]));
    }
  }
  std::vector<double> counts(16);
  for (std::int64_t epoch = 0; epoch < 50'000; ++epoch) {
    const Ids ids = epoch_of(*order, {.epoch = epoch});
    ASSERT_EQ(std::set<std::int64_t>(ids.begin(), ids.end()).size(), 3U);
    ASSERT_EQ(std::count(ids.begin(), ids.end(), 4), 0);
    ++counts[static_cast<std::size_t>(ids[0] * 4 + ids[1])];
  }
  EXPECT_LT(excess(counts, shares), kRejected);
  std::vector<double> independent;
  for (std::size_t i = 0; i < 16; ++i) {
    independent.push_back(i / 4 == i % 4 ? 0 : weights[i / 4] * weights[i % 4] / 70);
  }
  EXPECT_GT(excess(counts, independent), kRejected) << "the control";
}

// docs/data_order.md has these vectors; they were computed by a program written from that page.
TEST(WeightedOrder, IsFrozen) {
  const std::vector<double> weights = {1, 2, 3, 4, 0, 10};
  EXPECT_THAT(epoch_of(*weighted_order(weights, {.samples = 10}), {.seed = 42, .epoch = 1}),
              ElementsAre(3, 5, 0, 2, 5, 5, 2, 3, 1, 5));
  EXPECT_THAT(epoch_of(*weighted_order(weights, {.samples = 5, .replacement = false}), {.seed = 42, .epoch = 1}),
              ElementsAre(5, 3, 0, 2, 1));
}

TEST(WeightedOrder, RejectsInvalidWeights) {
  const auto message = [](const std::vector<double>& weights, WeightedOptions options = {}) {
    return message_of<DataError>([&] { weighted_order(weights, options); });
  };
  EXPECT_THAT(message({1, -1}), HasSubstr("sample 1 has weight -1, expected 0 or more"));
  EXPECT_THAT(message({1, std::nan("")}), HasSubstr("sample 1 has weight"));
  EXPECT_THAT(message({std::numeric_limits<double>::infinity()}), HasSubstr("sample 0 has weight inf"));
  EXPECT_THAT(message({0, 0}), HasSubstr("the sum of the weights is 0"));
  EXPECT_THAT(message({}), HasSubstr("the sum of the weights is 0"));
  EXPECT_THAT(message({1, 0}, {.samples = 2, .replacement = false}),
              HasSubstr("2 samples to draw, expected at most 1"));
  EXPECT_THAT(message({1, 0}, {.samples = -1}), HasSubstr("-1 samples"));
}

TEST(LengthBucketedOrder, PutsSimilarLengthsTogetherAndEverySampleOnce) {
  constexpr std::int64_t kSize = 10'007;
  constexpr std::int64_t kBatch = 32;
  Ids lengths;
  const KeyedPermutation shuffled(kSize, 1, 1);
  for (std::int64_t i = 0; i < kSize; ++i) {
    lengths.push_back(shuffled(i) % 1000);
  }
  const auto padding = [&](const Ids& ids) {  // share of a padded batch that is padding
    double padded = 0;
    double used = 0;
    for (std::size_t at = 0; at < ids.size(); at += kBatch) {
      std::int64_t longest = 0;
      const std::size_t end = std::min(ids.size(), at + kBatch);
      for (std::size_t i = at; i < end; ++i) {
        longest = std::max(longest, lengths[static_cast<std::size_t>(ids[i])]);
        used += static_cast<double>(lengths[static_cast<std::size_t>(ids[i])]);
      }
      padded += static_cast<double>(longest * static_cast<std::int64_t>(end - at));
    }
    return 1 - used / padded;
  };
  const auto order = length_bucketed_order(lengths);
  const Ids first = epoch_of(*order, {.epoch = 0, .global_batch = kBatch});
  const Ids second = epoch_of(*order, {.epoch = 1, .global_batch = kBatch});
  EXPECT_TRUE(is_every_sample_once(first));
  EXPECT_TRUE(is_every_sample_once(second));
  EXPECT_NE(first, second);
  EXPECT_LT(padding(first), 0.04);
  Ids plain;
  for (std::int64_t i = 0; i < kSize; ++i) {
    plain.push_back(KeyedPermutation(kSize, 42, 0)(i));
  }
  EXPECT_GT(padding(plain), 0.4) << "the control";
}

TEST(LengthBucketedOrder, IsFrozen) {
  const auto order = length_bucketed_order({0, 7, 4, 1, 8, 5, 2, 9, 6, 3}, 2);
  EXPECT_THAT(epoch_of(*order, {.seed = 42, .epoch = 1, .global_batch = 3}), ElementsAre(2, 4, 7, 0, 3, 9, 6, 8, 1, 5));
}

TEST(LengthBucketedOrder, ShufflesTheBatchesOfAPool) {
  Ids lengths(320);
  std::iota(lengths.begin(), lengths.end(), 0);
  const Ids ids = epoch_of(*length_bucketed_order(lengths, 10), {.global_batch = 32});
  Ids batch_lengths;
  for (std::size_t at = 0; at < ids.size(); at += 32) {
    batch_lengths.push_back(lengths[static_cast<std::size_t>(ids[at])]);
  }
  EXPECT_FALSE(std::is_sorted(batch_lengths.begin(), batch_lengths.end()));
  EXPECT_FALSE(std::is_sorted(batch_lengths.rbegin(), batch_lengths.rend()));
}

TEST(LengthBucketedOrder, DropsOtherSamplesInEveryEpoch) {
  Ids lengths(19);
  std::iota(lengths.begin(), lengths.end(), 0);
  std::set<std::int64_t> seen;
  const DistributedSampler sampler(
      {.size = 19, .order = length_bucketed_order(lengths), .global_batch = 10, .sampler = {.drop_last = true}});
  Ids ids;
  for (std::int64_t epoch = 0; epoch < 30; ++epoch) {
    sampler.rank_ids(epoch, 0, 0, ids);
    seen.insert(ids.begin(), ids.end());
  }
  EXPECT_EQ(seen.size(), 19U);
}

TEST(LengthBucketedOrder, RejectsInvalidLengths) {
  EXPECT_THAT(message_of<DataError>([] { length_bucketed_order({3, -1}); }), HasSubstr("sample 1 has length -1"));
  EXPECT_THAT(message_of<DataError>([] { length_bucketed_order({}); }), HasSubstr("the list of lengths is empty"));
  EXPECT_THAT(message_of<DataError>([] { length_bucketed_order({3}, 0); }), HasSubstr("the pool is 0 batches"));
}

TEST(CustomOrder, CallsTheProgramOncePerEpochAndChecksTheLength) {
  int asked = 0;
  const auto order = custom_order(3, [&](std::uint64_t, std::int64_t epoch) {
    ++asked;
    return epoch == 5 ? Ids{0} : Ids{2, 0, epoch};
  });
  Ids ids(1);
  for (std::int64_t position = 0; position < 3; ++position) {
    order->fill({.epoch = 1}, position, ids);
  }
  EXPECT_THAT(ids, ElementsAre(1));
  EXPECT_EQ(asked, 1);
  EXPECT_THAT(message_of<DataError>([&] { order->fill({.epoch = 5}, 0, ids); }),
              HasSubstr("the list has 1 samples in epoch 5, expected 3"));
  order->fill({.epoch = 1}, 0, ids);
  EXPECT_THAT(ids, ElementsAre(2));
  EXPECT_THAT(message_of<DataError>([] { custom_order(3, {}); }), HasSubstr("and the function is missing"));
}

}  // namespace
}  // namespace lockstep
