// lockstep/sampling/epoch_order.h
//
// Orders other than "every sample once, shuffled": weighted, by length, or a program's own. An order says which sample
// stands at which position of an epoch; which rank takes it in which step is DistributedSampler's to say, the same for
// all of them. So each of them continues at any position with any number of ranks. docs/data.md has the algorithms.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace [[gnu::visibility("default")]] lockstep {

/// What an order may depend on, besides what it was made from.
struct OrderKey {
  std::uint64_t seed = 42;
  std::int64_t epoch = 0;
  std::int64_t global_batch = 1;  ///< samples per step over all ranks
};

/// A pure function of (key, position): the same on every rank, and whenever it is asked. Thread-safe.
class EpochOrder {
 public:
  virtual ~EpochOrder() = default;
  virtual std::int64_t length() const = 0;  ///< positions of every epoch
  /// Writes the samples at positions first .. first + ids.size() - 1, all below length().
  virtual void fill(const OrderKey& key, std::int64_t first, std::span<std::int64_t> ids) const = 0;
  /// How many samples the data set must have that this was made for; nullopt: not known.
  virtual std::optional<std::int64_t> samples() const { return std::nullopt; }
  /// Whether OrderKey::global_batch matters; a run then cannot change it inside an epoch.
  virtual bool depends_on_batch() const { return false; }
};

struct WeightedOptions {
  std::int64_t samples = 0;  ///< drawn per epoch; 0: as many as there are weights
  bool replacement = true;   ///< false: no sample twice in an epoch
};

/// What PyTorch's WeightedRandomSampler is for: sample i is drawn with probability weights[i] / their sum. With
/// replacement 16 bytes per weight and O(1) per index; without, an epoch's order is sorted once, on its first use.
/// Throws: DataError (a weight that is negative or not finite, none above 0; without replacement: more samples than
/// weights above 0).
std::shared_ptr<const EpochOrder> weighted_order(std::span<const double> weights, const WeightedOptions& options = {});

/// Every sample once, and samples of similar length together in each global batch, so that little is padded. Within a
/// pool of `pool` global batches, drawn anew in each epoch, samples are sorted by length and the batches shuffled.
/// Sorts a pool at a time. Throws: DataError (a negative length, a pool below 1).
std::shared_ptr<const EpochOrder> length_bucketed_order(std::vector<std::int64_t> lengths, std::int64_t pool = 50);

/// A sampler of the program's own: `make` gives an epoch's list of `length` samples, the same on every rank. Called
/// once per epoch; seed it with (seed, epoch) alone. fill() throws: DataError when a list has another length.
std::shared_ptr<const EpochOrder> custom_order(
    std::int64_t length, std::function<std::vector<std::int64_t>(std::uint64_t seed, std::int64_t epoch)> make);

}  // namespace lockstep
