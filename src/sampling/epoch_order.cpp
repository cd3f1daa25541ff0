#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/sampling/distributed_sampler.h>
#include <lockstep/sampling/epoch_order.h>

#include "sampling/epoch_hash.h"
#include "sampling/epoch_list.h"

namespace lockstep {
namespace {

class LengthBucketed final : public EpochOrder {
 public:
  // Not more than all: the product with the batch would not fit into a number.
  LengthBucketed(std::vector<std::int64_t> lengths, std::int64_t pool)
      : lengths_(std::move(lengths)), pool_(std::min(pool, std::ssize(lengths_))) {}

  std::int64_t length() const override { return static_cast<std::int64_t>(lengths_.size()); }
  std::optional<std::int64_t> samples() const override { return length(); }
  bool depends_on_batch() const override { return true; }

  void fill(const OrderKey& key, std::int64_t first, std::span<std::int64_t> ids) const override {
    const std::int64_t size = pool_ * key.global_batch;
    while (!ids.empty()) {
      const std::int64_t pool = first / size;
      const std::int64_t skip = first % size;
      const auto count = static_cast<std::size_t>(std::min(static_cast<std::int64_t>(ids.size()), size - skip));
      list_.copy(
          {key.seed, key.epoch, key.global_batch, pool}, [&] { return make(key, pool); }, skip, ids.first(count));
      ids = ids.subspan(count);
      first += static_cast<std::int64_t>(count);
    }
  }

 private:
  std::vector<std::int64_t> make(const OrderKey& key, std::int64_t pool) const {
    const std::int64_t begin = pool * pool_ * key.global_batch;
    const std::int64_t count = std::min(pool_ * key.global_batch, length() - begin);
    const std::int64_t batches = count / key.global_batch;
    std::vector<std::int64_t> sorted(static_cast<std::size_t>(count));
    KeyedPermutation(length(), key.seed, key.epoch).fill(begin, sorted);
    // The samples that do not fill a batch keep their random order: otherwise drop_last would always drop the same
    // ones.
    const auto whole = sorted.begin() + static_cast<std::ptrdiff_t>(batches * key.global_batch);
    std::sort(sorted.begin(), whole,
              [&](std::int64_t a, std::int64_t b) { return std::pair(length_of(a), a) < std::pair(length_of(b), b); });
    std::vector<std::int64_t> batch_order(static_cast<std::size_t>(batches));
    KeyedPermutation(batches, epoch_hash(key.seed, pool), key.epoch).fill(0, batch_order);
    std::vector<std::int64_t> list;
    list.reserve(sorted.size());
    for (const std::int64_t batch : batch_order) {
      const auto from = sorted.begin() + static_cast<std::ptrdiff_t>(batch * key.global_batch);
      list.insert(list.end(), from, from + static_cast<std::ptrdiff_t>(key.global_batch));
    }
    list.insert(list.end(), whole, sorted.end());
    return list;
  }

  std::int64_t length_of(std::int64_t id) const { return lengths_[static_cast<std::size_t>(id)]; }

  std::vector<std::int64_t> lengths_;
  std::int64_t pool_;
  mutable EpochList<std::tuple<std::uint64_t, std::int64_t, std::int64_t, std::int64_t>> list_{};
};

class Custom final : public EpochOrder {
 public:
  Custom(std::int64_t length, std::function<std::vector<std::int64_t>(std::uint64_t, std::int64_t)> make)
      : length_(length), make_(std::move(make)) {}

  std::int64_t length() const override { return length_; }

  void fill(const OrderKey& key, std::int64_t first, std::span<std::int64_t> ids) const override {
    list_.copy(
        {key.seed, key.epoch}, [&] { return checked(make_(key.seed, key.epoch), key.epoch); }, first, ids);
  }

 private:
  std::vector<std::int64_t> checked(std::vector<std::int64_t> list, std::int64_t epoch) const {
    if (static_cast<std::int64_t>(list.size()) != length_) {
      throw DataError(
          fmt::format("custom order: the list has {} samples in epoch {}, expected {}", list.size(), epoch, length_),
          "the list of every epoch must have the length of the order");
    }
    return list;
  }

  std::int64_t length_;
  std::function<std::vector<std::int64_t>(std::uint64_t, std::int64_t)> make_;
  mutable EpochList<std::pair<std::uint64_t, std::int64_t>> list_{};
};

}  // namespace

std::shared_ptr<const EpochOrder> length_bucketed_order(std::vector<std::int64_t> lengths, std::int64_t pool) {
  if (lengths.empty()) {
    throw DataError("length bucketed order: the list of lengths is empty", "give it the length of each sample");
  }
  if (pool < 1) {
    throw DataError(fmt::format("length bucketed order: the pool is {} batches, expected 1 or more", pool));
  }
  const auto negative = std::ranges::find_if(lengths, [](std::int64_t length) { return length < 0; });
  if (negative != lengths.end()) {
    throw DataError(fmt::format("length bucketed order: sample {1} has length {0}, expected 0 or more", *negative,
                                negative - lengths.begin()));
  }
  return std::make_shared<LengthBucketed>(std::move(lengths), pool);
}

std::shared_ptr<const EpochOrder> custom_order(
    std::int64_t length, std::function<std::vector<std::int64_t>(std::uint64_t seed, std::int64_t epoch)> make) {
  if (length < 1 || !make) {
    throw DataError(fmt::format("custom order: the length is {}{}, expected 1 or more and a function", length,
                                make ? "" : " and the function is missing"));
  }
  return std::make_shared<Custom>(length, std::move(make));
}

}  // namespace lockstep
