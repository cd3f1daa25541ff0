// lockstep/sampling/epoch_order.h
//
// Orders other than "every sample once, shuffled": weighted, by length, or defined by the program. An order assigns a
// sample to each position of an epoch; DistributedSampler assigns positions to ranks and steps. So every order can
// continue at any position with any number of ranks. docs/data_order.md has the algorithms.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace [[gnu::visibility("default")]] lockstep {

/// The inputs of an order, besides its own data.
struct OrderKey {
  std::uint64_t seed = 42;
  std::int64_t epoch = 0;
  std::int64_t global_batch = 1;  ///< samples per step over all ranks
};

/// A pure function of (key, position): it gives the same result on every rank at any time. Thread-safe.
class EpochOrder {
 public:
  virtual ~EpochOrder() = default;
  virtual std::int64_t length() const = 0;  ///< positions per epoch
  /// Writes the samples at positions first .. first + ids.size() - 1, all below length().
  virtual void fill(const OrderKey& key, std::int64_t first, std::span<std::int64_t> ids) const = 0;
  /// Required size of the data set; nullopt: not known.
  virtual std::optional<std::int64_t> samples() const { return std::nullopt; }
  /// Whether the order depends on OrderKey::global_batch; a run must then not change it within an epoch.
  virtual bool depends_on_batch() const { return false; }
};

/// How many samples weighted_order() draws, and whether a sample may be drawn twice.
struct WeightedOptions {
  std::int64_t samples = 0;  ///< drawn per epoch; 0: as many as weights
  bool replacement = true;   ///< false: no sample twice in an epoch
};

/// As PyTorch's WeightedRandomSampler: draws sample i with probability weights[i] / sum of weights. With replacement it
/// needs 16 bytes per weight and O(1) per index; without, it sorts the order of an epoch once, on first use. Throws:
/// DataError (a weight that is negative or not finite, no positive weight; without replacement: more samples than
/// positive weights).
std::shared_ptr<const EpochOrder> weighted_order(std::span<const double> weights, const WeightedOptions& options = {});

/// Every sample once, with samples of similar length in the same global batch, so that there is little padding. Each
/// epoch is divided at random into pools of `pool` global batches; the samples of a pool are sorted by length and its
/// batches are shuffled. Throws: DataError (a negative length, a pool below 1).
std::shared_ptr<const EpochOrder> length_bucketed_order(std::vector<std::int64_t> lengths, std::int64_t pool = 50);

/// An order of the program: `make` returns a list of `length` samples for an epoch, the same on every rank. Called once
/// per epoch; it must depend on (seed, epoch) only. A later pass k of an epoch (data.steps_per_epoch) has the number
/// epoch + k 2^32: the epoch is in the lower 32 bits. fill() throws: DataError if a list has another length.
std::shared_ptr<const EpochOrder> custom_order(
    std::int64_t length, std::function<std::vector<std::int64_t>(std::uint64_t seed, std::int64_t epoch)> make);

}  // namespace lockstep
