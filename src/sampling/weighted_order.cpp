#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/sampling/epoch_order.h>

#include "sampling/epoch_hash.h"
#include "sampling/epoch_list.h"

namespace lockstep {
namespace {

double checked_sum(std::span<const double> weights) {
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] >= 0) || !std::isfinite(weights[i])) {
      throw DataError(fmt::format("weighted order: sample {1} has weight {0}, expected 0 or more", weights[i], i));
    }
    sum += weights[i];
  }
  if (!(sum > 0) || !std::isfinite(sum)) {
    throw DataError(fmt::format("weighted order: the sum of the weights is {}, expected a number above 0", sum));
  }
  return sum;
}

/// Walker's alias method: draws a column, then one of its two samples.
class WithReplacement final : public EpochOrder {
 public:
  WithReplacement(std::span<const double> weights, double sum, std::int64_t length)
      : length_(length), columns_(weights.size()) {
    const auto n = static_cast<double>(weights.size());
    std::vector<double> share(weights.size());  // of a column, 1 on average
    std::vector<std::size_t> small;
    std::vector<std::size_t> large;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      share[i] = weights[i] / sum * n;
      (share[i] < 1 ? small : large).push_back(i);
    }
    while (!small.empty() && !large.empty()) {
      const std::size_t low = small.back();
      const std::size_t high = large.back();
      small.pop_back();
      columns_[low] = {.threshold = static_cast<std::uint64_t>(std::ldexp(share[low], 64)),
                       .alias = static_cast<std::int64_t>(high)};
      share[high] -= 1 - share[low];
      if (share[high] < 1) {
        large.pop_back();
        small.push_back(high);
      }
    }
    // Because of rounding some columns remain; each is one whole column. A sample without weight gets the heaviest as
    // alias.
    const auto heaviest = std::ranges::max_element(weights) - weights.begin();
    for (const auto* rest : {&small, &large}) {
      for (const std::size_t i : *rest) {
        columns_[i] = {.threshold = 0, .alias = weights[i] > 0 ? static_cast<std::int64_t>(i) : heaviest};
      }
    }
  }

  std::int64_t length() const override { return length_; }
  std::optional<std::int64_t> samples() const override { return static_cast<std::int64_t>(columns_.size()); }

  void fill(const OrderKey& key, std::int64_t first, std::span<std::int64_t> ids) const override {
    const std::uint64_t state = epoch_state(key.seed, key.epoch);
    for (std::int64_t& id : ids) {
      const std::uint64_t hash = epoch_hash(state, first++);
      const std::uint64_t index = high_product(hash, columns_.size());
      const Column& column = columns_[index];
      id = splitmix(hash) < column.threshold ? static_cast<std::int64_t>(index) : column.alias;
    }
  }

 private:
  struct Column {
    std::uint64_t threshold = 0;  // in 2^-64: below it the column's own sample, else its alias
    std::int64_t alias = 0;
  };
  std::int64_t length_;
  std::vector<Column> columns_;
};

/// -log2(x / 2^64) in 2^-48. Integers only: the last bit of a library's logarithm differs between processors, and ranks
/// must agree.
std::uint64_t negative_log2(std::uint64_t x) noexcept {
  constexpr int kBits = 48;
  if (x == 0) {
    return std::uint64_t{64} << kBits;
  }
  const int zeros = std::countl_zero(x);
  __extension__ using uint128 = unsigned __int128;
  uint128 y = x << zeros;  // 1 .. 2 in 2^-63
  std::uint64_t fraction = 0;
  for (int i = 0; i < kBits; ++i) {
    y = (y * y) >> 63;
    const auto bit = static_cast<unsigned>(y >> 64);
    y >>= bit;
    fraction = (fraction << 1) | bit;
  }
  return (static_cast<std::uint64_t>(zeros + 1) << kBits) - fraction;
}

/// Sorts by exponential random variables with the weights as rates: the same order as successive weighted draws
/// (Efraimidis, Spirakis 2006).
class WithoutReplacement final : public EpochOrder {
 public:
  WithoutReplacement(std::span<const double> weights, std::int64_t length)
      : length_(length), weights_(weights.begin(), weights.end()) {
    const auto possible = std::ranges::count_if(weights, [](double weight) { return weight > 0; });
    if (length > possible) {
      throw DataError(fmt::format("weighted order without replacement: {} samples to draw, expected at most {}, "
                                  "the number of positive weights",
                                  length, possible),
                      "draw fewer samples, or with replacement");
    }
  }

  std::int64_t length() const override { return length_; }
  std::optional<std::int64_t> samples() const override { return static_cast<std::int64_t>(weights_.size()); }

  void fill(const OrderKey& key, std::int64_t first, std::span<std::int64_t> ids) const override {
    list_.copy(
        {key.seed, key.epoch}, [&] { return make(key); }, first, ids);
  }

 private:
  std::vector<std::int64_t> make(const OrderKey& key) const {
    const std::uint64_t state = epoch_state(key.seed, key.epoch);
    std::vector<std::pair<double, std::int64_t>> times;
    times.reserve(weights_.size());
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (weights_[i] > 0) {
        const auto id = static_cast<std::int64_t>(i);
        times.emplace_back(static_cast<double>(negative_log2(epoch_hash(state, id))) / weights_[i], id);
      }
    }
    std::partial_sort(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(length_), times.end());
    std::vector<std::int64_t> list;
    list.reserve(static_cast<std::size_t>(length_));
    for (std::int64_t i = 0; i < length_; ++i) {
      list.push_back(times[static_cast<std::size_t>(i)].second);
    }
    return list;
  }

  std::int64_t length_;
  std::vector<double> weights_;
  mutable EpochList<std::pair<std::uint64_t, std::int64_t>> list_{};
};

}  // namespace

std::shared_ptr<const EpochOrder> weighted_order(std::span<const double> weights, const WeightedOptions& options) {
  const double sum = checked_sum(weights);
  if (options.samples < 0) {
    throw DataError(fmt::format("weighted order: {} samples to draw, expected 0 or more", options.samples));
  }
  const auto length = options.samples > 0 ? options.samples : static_cast<std::int64_t>(weights.size());
  if (options.replacement) {
    return std::make_shared<WithReplacement>(weights, sum, length);
  }
  return std::make_shared<WithoutReplacement>(weights, length);
}

}  // namespace lockstep
