#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/sampling/distributed_sampler.h>

#include "sampling/epoch_hash.h"

namespace lockstep {
namespace {

// The rounds of one index depend on each other, those of several indices do not: a processor runs them in parallel.
constexpr std::size_t kLanes = 8;

// value + a hash of `other`, in Z_range. The hash is the part of mix() that determines its high bits; the high product
// maps it to the range without a division.
std::uint64_t rotate(std::uint64_t value, std::uint64_t other, std::uint64_t key, std::uint64_t range) noexcept {
  std::uint64_t hash = (other + key) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ (hash >> 32)) * 0x94d049bb133111eb;
  const std::uint64_t sum = value + high_product(hash, range);
  return sum >= range ? sum - range : sum;
}

// A small number of distinct round inputs needs more rounds: chosen with a margin from the chi-squares of adjacent
// pairs in the tests.
int round_count(std::uint64_t size) noexcept {
  if (size < 1024) {
    return 24;
  }
  return size < (1 << 20) ? 8 : 6;
}

// Smallest even c with c * c >= size, at least 2. Even, because rotations of odd cycles alone reach only even
// permutations.
std::uint64_t column_count(std::uint64_t size) {
  auto root = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(size)));
  while (root * root < size) {
    ++root;
  }
  while (root > 0 && (root - 1) * (root - 1) >= size) {
    --root;
  }
  root += root % 2;
  return root < 2 ? 2 : root;
}

}  // namespace

KeyedPermutation::KeyedPermutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  if (size < 0 || size > (std::int64_t{1} << 62)) {  // without OptionCheck: this runs in every step
    throw ConfigError(fmt::format("KeyedPermutation: size is {}, expected 0 to 2^62", size));
  }
  size_ = static_cast<std::uint64_t>(size);
  columns_ = column_count(size_);
  rows_ = size_ == 0 ? 1 : (size_ + columns_ - 1) / columns_;
  reciprocal_ = ~std::uint64_t{0} / columns_;
  rounds_ = round_count(size_);
  const std::uint64_t state = epoch_state(seed, epoch);
  for (int i = 0; i < rounds_; ++i) {
    keys_[i] = epoch_hash(state, i);
  }
}

std::int64_t KeyedPermutation::operator()(std::int64_t position) const noexcept {
  std::array x{static_cast<std::uint64_t>(position)};
  do {  // the grid has up to columns_ - 1 extra cells: follow the cycle until inside
    shuffle(x);
  } while (x[0] >= size_);
  return static_cast<std::int64_t>(x[0]);
}

void KeyedPermutation::fill(std::int64_t first, std::span<std::int64_t> ids) const noexcept {
  std::array<std::uint64_t, kLanes> x{};
  for (; ids.size() >= kLanes; ids = ids.subspan(kLanes)) {
    std::iota(x.begin(), x.end(), static_cast<std::uint64_t>(first));
    first += std::int64_t{kLanes};
    shuffle(x);
    std::ranges::transform(x, ids.begin(), [this](std::uint64_t cell) {
      const auto id = static_cast<std::int64_t>(cell);
      return cell < size_ ? id : (*this)(id);  // follows the cycle
    });
  }
  for (std::int64_t& id : ids) {
    id = (*this)(first++);
  }
}

template <std::size_t lanes>
void KeyedPermutation::shuffle(std::array<std::uint64_t, lanes>& x) const noexcept {
  std::array<std::uint64_t, lanes> row{};
  std::array<std::uint64_t, lanes> column{};
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    row[lane] = high_product(x[lane], reciprocal_);  // x / columns_, or one less
    column[lane] = x[lane] - row[lane] * columns_;
    if (column[lane] >= columns_) {
      ++row[lane];
      column[lane] -= columns_;
    }
  }
  for (int i = 0; i < rounds_; i += 2) {
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      row[lane] = rotate(row[lane], column[lane], keys_[i], rows_);
      column[lane] = rotate(column[lane], row[lane], keys_[i + 1], columns_);
    }
  }
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    x[lane] = row[lane] * columns_ + column[lane];
  }
}

}  // namespace lockstep
