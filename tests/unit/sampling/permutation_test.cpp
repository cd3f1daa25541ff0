#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/sampling/distributed_sampler.h>

#include "support/sweep.h"

namespace lockstep {
namespace {

using Order = std::function<std::int64_t(std::int64_t)>;
using MakeOrder = std::function<Order(std::int64_t size, std::uint64_t seed, std::int64_t epoch)>;

Order keyed(std::int64_t size, std::uint64_t seed, std::int64_t epoch) { return KeyedPermutation(size, seed, epoch); }

// Bad orders: every statistical test below must reject at least one of them.
Order identity(std::int64_t, std::uint64_t, std::int64_t) {
  return [](std::int64_t position) { return position; };
}
Order rotation(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  const std::int64_t shift = KeyedPermutation(size, seed, epoch)(0);
  return [=](std::int64_t position) { return (position + shift) % size; };
}
Order linear_congruential(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  const std::int64_t shift = KeyedPermutation(size, seed, epoch)(0);
  return [=](std::int64_t position) { return (position * 7919 + shift) % size; };
}

// How many standard deviations a chi-square of `counts` against equal cells is above its mean.
double excess(const std::vector<double>& counts, double degrees_of_freedom) {
  const double expected = std::accumulate(counts.begin(), counts.end(), 0.0) / static_cast<double>(counts.size());
  double chi_square = 0;
  for (const double count : counts) {
    chi_square += (count - expected) * (count - expected) / expected;
  }
  return (chi_square - degrees_of_freedom) / std::sqrt(2 * degrees_of_freedom);
}

constexpr double kRejected = 6;  // one in a billion for a good order

std::size_t cell(std::int64_t value, std::int64_t size, std::size_t cells) {
  return static_cast<std::size_t>(static_cast<double>(value) / static_cast<double>(size) * static_cast<double>(cells));
}

// Every permutation of a few elements comes up equally often over seeds.
double permutations_excess(const MakeOrder& make, std::int64_t size) {
  std::vector<std::int64_t> elements(static_cast<std::size_t>(size));
  std::iota(elements.begin(), elements.end(), 0);
  std::map<std::vector<std::int64_t>, double> seen;
  do {
    seen[elements] = 0;
  } while (std::next_permutation(elements.begin(), elements.end()));
  const std::size_t seeds = seen.size() * 200;
  for (std::size_t seed = 0; seed < seeds; ++seed) {
    const Order order = make(size, seed, 0);
    for (std::int64_t i = 0; i < size; ++i) {
      elements[static_cast<std::size_t>(i)] = order(i);
    }
    ++seen.at(elements);
  }
  std::vector<double> counts;
  for (const auto& [permutation, count] : seen) {
    counts.push_back(count);
  }
  return excess(counts, static_cast<double>(counts.size() - 1));
}

// Which value stands at which position, over seeds.
double positions_excess(const MakeOrder& make, std::int64_t size, std::uint64_t seeds) {
  const auto n = static_cast<std::size_t>(size);
  std::vector<double> counts(n * n);
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const Order order = make(size, seed, 0);
    for (std::int64_t i = 0; i < size; ++i) {
      ++counts[static_cast<std::size_t>(i * size + order(i))];
    }
  }
  return excess(counts, static_cast<double>((n - 1) * (n - 1)));
}

// Which value follows which, over seeds. Equal ones cannot.
double neighbours_excess(const MakeOrder& make, std::int64_t size, std::uint64_t seeds) {
  const auto n = static_cast<std::size_t>(size);
  std::vector<double> counts(n * n);
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const Order order = make(size, seed, 0);
    std::int64_t last = order(0);
    for (std::int64_t i = 1; i < size; ++i) {
      const std::int64_t next = order(i);
      ++counts[static_cast<std::size_t>(last * size + next)];
      last = next;
    }
  }
  std::vector<double> possible;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (i / n != i % n) {
      possible.push_back(counts[i]);
    }
  }
  return excess(possible, static_cast<double>(possible.size() - 1));
}

// The same within one large order: cells of a square, over the first `count` positions.
double pair_excess(std::int64_t size, std::int64_t count, const Order& a, const Order& b) {
  constexpr std::size_t kCells = 16;
  std::vector<double> counts(kCells * kCells);
  for (std::int64_t i = 0; i < count; ++i) {
    ++counts[cell(a(i), size, kCells) * kCells + cell(b(i), size, kCells)];
  }
  return excess(counts, kCells * kCells - 1);
}

double lag_excess(const MakeOrder& make, std::int64_t size, std::int64_t lag) {
  const Order order = make(size, 42, 0);
  const std::int64_t count = std::min<std::int64_t>(size - lag, 200'000);
  return pair_excess(size, count, order, [&](std::int64_t i) { return order(i + lag); });
}

double epochs_excess(const MakeOrder& make, std::int64_t size) {
  const std::int64_t count = std::min<std::int64_t>(size, 200'000);
  return pair_excess(size, count, make(size, 42, 0), make(size, 42, 1));
}

TEST(KeyedPermutation, VisitsEveryIndexOnce) {
  std::vector<std::int64_t> sizes = {4095,   4096,    4097,      9973,      10'000,    65'535,    65'536,   65'537,
                                     99'991, 999'983, 1'048'575, 1'048'576, 1'048'577, 1'281'167, 3'000'017};
  for (std::int64_t size = 0; size <= 1100; ++size) {
    sizes.push_back(size);
  }
  int checked = 0;
  for (const std::int64_t size : sizes) {
    const auto seed = static_cast<std::uint64_t>(size * 31 + 7);
    const KeyedPermutation order(size, seed, size % 5);
    std::vector<bool> seen(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t value = order(i);
      ASSERT_TRUE(value >= 0 && value < size) << "size " << size << " position " << i << " value " << value;
      ASSERT_FALSE(seen[static_cast<std::size_t>(value)]) << "size " << size << " position " << i << " value " << value;
      seen[static_cast<std::size_t>(value)] = true;
    }
    ++checked;
  }
  EXPECT_EQ(checked, 1116);
}

// The preset nightly goes up to 2^27.
TEST(KeyedPermutation, VisitsEveryIndexOfALargeSetOnce) {
  const auto is_bijection = [](std::int64_t size, const Order& order) {
    std::vector<bool> seen(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t value = order(i);
      if (value < 0 || value >= size || seen[static_cast<std::size_t>(value)]) {
        return false;
      }
      seen[static_cast<std::size_t>(value)] = true;
    }
    return true;
  };
  Sweep sweep("large permutations");
  const int bits = rounds(/*everyday=*/20) >= 100 ? 27 : 20;
  for (const std::int64_t offset : {-1, 0, 1}) {
    const std::int64_t size = (std::int64_t{1} << bits) + offset;
    sweep.count(is_bijection(size, KeyedPermutation(size, 7, 3)));
  }
  constexpr std::int64_t kSmall = 1 << 20;
  const KeyedPermutation order(kSmall, 7, 3);
  EXPECT_FALSE(is_bijection(kSmall, [&](std::int64_t i) { return order(i == kSmall - 1 ? 0 : i); })) << "the control";
  EXPECT_EQ(sweep.points(), 3);
  EXPECT_EQ(sweep.lost(), 0);
}

TEST(KeyedPermutation, StaysInRangeForHugeSizes) {
  for (const int bits : {31, 32, 33, 40, 50, 62}) {
    for (const std::int64_t offset : {-1, 0, 1}) {
      const std::int64_t size = (std::int64_t{1} << bits) + (bits == 62 ? std::min<std::int64_t>(offset, 0) : offset);
      const KeyedPermutation order(size, 42, 3);
      std::vector<std::int64_t> values;
      for (std::int64_t i = 0; i < 20'000; ++i) {
        values.push_back(order(i < 10'000 ? i : size - 1 - (i - 10'000)));
        ASSERT_TRUE(values.back() >= 0 && values.back() < size);
      }
      std::sort(values.begin(), values.end());
      EXPECT_EQ(std::adjacent_find(values.begin(), values.end()), values.end()) << "size " << size;
    }
  }
}

TEST(KeyedPermutation, FillsARangeWithTheSameValues) {
  std::vector<std::int64_t> sizes(2001);
  std::iota(sizes.begin(), sizes.end(), 0);
  for (const int bits : {12, 16, 20, 31, 32, 33, 40, 61, 62}) {
    const std::int64_t size = std::int64_t{1} << bits;
    sizes.insert(sizes.end(), {size - 1, size, bits == 62 ? 3 : size + 1});
  }
  std::int64_t runs = 0;
  for (const std::int64_t size : sizes) {
    const KeyedPermutation order(size, 42, size % 3);
    const std::int64_t whole = std::min<std::int64_t>(size, 2000);
    for (const auto& [first, count] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {0, whole}, {size - whole, whole}, {size / 3, whole / 5}, {size / 2, size % 17 % (whole / 2 + 1)}}) {
      std::vector<std::int64_t> expected;
      for (std::int64_t i = 0; i < count; ++i) {
        expected.push_back(order(first + i));
      }
      std::vector<std::int64_t> found(expected.size(), -1);
      order.fill(first, found);
      ASSERT_EQ(found, expected) << "size " << size << ", " << count << " from " << first;
      ++runs;
    }
  }
  EXPECT_EQ(runs, 4 * 2028);
}

TEST(KeyedPermutation, ReachesEveryPermutationOfFewElementsEquallyOften) {
  for (const std::int64_t size : {2, 3, 4, 5, 6}) {
    EXPECT_LT(std::abs(permutations_excess(keyed, size)), kRejected) << "size " << size;
  }
  EXPECT_GT(permutations_excess(rotation, 5), kRejected) << "the control";
}

TEST(KeyedPermutation, PutsEveryValueAtEveryPositionEquallyOften) {
  for (const std::int64_t size : {7, 8, 9, 10, 16, 25, 64, 100, 200}) {
    const auto seeds = static_cast<std::uint64_t>(200'000 / size);
    EXPECT_LT(std::abs(positions_excess(keyed, size, seeds)), kRejected) << "size " << size;
  }
  EXPECT_GT(positions_excess(identity, 100, 4000), kRejected) << "the control";
}

TEST(KeyedPermutation, LetsEveryValueFollowEveryOtherEquallyOften) {
  for (const std::int64_t size : {7, 8, 9, 10, 16, 25, 64, 100, 200}) {
    const auto seeds = static_cast<std::uint64_t>(200'000 / size);
    EXPECT_LT(std::abs(neighbours_excess(keyed, size, seeds)), kRejected) << "size " << size;
  }
  EXPECT_GT(neighbours_excess(rotation, 100, 4000), kRejected) << "the control";
  EXPECT_GT(neighbours_excess(linear_congruential, 100, 4000), kRejected) << "the control";
}

TEST(KeyedPermutation, HasIndependentNeighboursInLargeSets) {
  for (const std::int64_t size :
       {std::int64_t{100'000}, std::int64_t{1'281'167}, std::int64_t{1} << 32, std::int64_t{1} << 50}) {
    for (const std::int64_t lag : {1, 2, 1000}) {
      EXPECT_LT(lag_excess(keyed, size, lag), kRejected) << "size " << size << " lag " << lag;
    }
    // one row of the grid apart
    EXPECT_LT(lag_excess(keyed, size, static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(size))))),
              kRejected);
    EXPECT_GT(lag_excess(identity, size, 1), kRejected) << "the control";
  }
  EXPECT_GT(lag_excess(linear_congruential, 100'000, 1), kRejected) << "the control";
}

TEST(KeyedPermutation, HasIndependentEpochs) {
  for (const std::int64_t size : {std::int64_t{20'000}, std::int64_t{1'281'167}, std::int64_t{1} << 40}) {
    EXPECT_LT(epochs_excess(keyed, size), kRejected) << "size " << size;
    EXPECT_GT(epochs_excess([](std::int64_t n, std::uint64_t seed, std::int64_t) { return keyed(n, seed, 0); }, size),
              kRejected)
        << "the control: an order that ignores the epoch";
  }
}

// docs/data_order.md has these vectors. They are part of the checkpoint format: a change here loses everybody's
// position.
TEST(KeyedPermutation, EqualsTheGoldenVectorsOfDataOrder1) {
  struct Golden {
    std::int64_t size;
    std::uint64_t seed;
    std::int64_t epoch;
    std::vector<std::int64_t> first;
  };
  const std::vector<Golden> vectors = {
      {1, 42, 0, {0}},
      {2, 42, 1, {0, 1}},
      {10, 42, 0, {1, 5, 6, 2, 7, 3, 9, 8, 0, 4}},
      {10, 42, 1, {4, 9, 3, 0, 7, 2, 1, 8, 6, 5}},
      {10, 43, 0, {3, 0, 7, 2, 4, 6, 9, 5, 1, 8}},
      {1000, 42, 0, {110, 830, 429, 626, 293, 181, 794, 734, 784, 956}},
      {1000, 7, 3, {146, 357, 444, 580, 182, 782, 886, 494, 411, 646}},
      {60'000, 42, 0, {34342, 9641, 43392, 6522, 54896, 29793, 5186, 43209, 6736, 38294}},
      {1'281'167, 42, 0, {1089919, 196399, 964041, 745068, 930127, 146155, 258474, 180613, 291945, 914692}},
      {1'281'167,
       18446744073709551615U,
       9,
       {1082316, 358309, 685636, 153195, 999937, 128304, 661952, 531873, 717945, 500447}},
      {1'000'000'000'000, 42, 0, {849927121342, 767129721366, 332799908681, 35882939129, 851948693029}},
      {std::int64_t{1} << 62,
       1,
       2,
       {3111293784704861432, 2057445699757550623, 2206293501122146195, 1048352866001601027}},
  };
  for (const Golden& golden : vectors) {
    const KeyedPermutation order(golden.size, golden.seed, golden.epoch);
    std::vector<std::int64_t> found;
    for (std::size_t i = 0; i < golden.first.size(); ++i) {
      found.push_back(order(static_cast<std::int64_t>(i)));
    }
    EXPECT_EQ(found, golden.first) << "size " << golden.size << " seed " << golden.seed << " epoch " << golden.epoch;
  }
  EXPECT_EQ(KeyedPermutation(1'000'000'000'000, 42, 0)(999'999'999'999), 379093153552);
}

}  // namespace
}  // namespace lockstep
