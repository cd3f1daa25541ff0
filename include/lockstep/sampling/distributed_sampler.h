// lockstep/sampling/distributed_sampler.h
//
// Which samples each rank gets, in which order. Pure arithmetic: no torch, no I/O, no clock, and in keyed order no
// index table. docs/data_order.md is the contract: data_order 1 is part of the checkpoint format and never
// changes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <lockstep/config/train_config.h>
#include <lockstep/sampling/epoch_order.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Fixed by the checkpoint format; a checkpoint with another number is rejected.
inline constexpr int kDataOrder = 1;

/// A random bijection of {0 .. size-1} with O(1) memory and time per index, the same on every machine. Seeded by (seed,
/// epoch). docs/data_order.md has the exact algorithm and golden vectors.
class KeyedPermutation {
 public:
  KeyedPermutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch);  ///< 0 <= size <= 2^62
  std::int64_t operator()(std::int64_t position) const noexcept;                ///< 0 <= position < size
  /// The same for the positions first .. first + ids.size() - 1, faster than single calls.
  void fill(std::int64_t first, std::span<std::int64_t> ids) const noexcept;

 private:
  static constexpr int kMaxRounds = 24;
  template <std::size_t lanes>  // applies the same bijection of {0 .. rows_ * columns_ - 1} to each lane
  void shuffle(std::array<std::uint64_t, lanes>& x) const noexcept;

  std::uint64_t size_;
  std::uint64_t rows_;  // x = row * columns_ + column
  std::uint64_t columns_;
  std::uint64_t reciprocal_;  // of columns_, to avoid a division per index
  int rounds_;
  std::uint64_t keys_[kMaxRounds];
};

/// The order of a data set over ranks and steps. Its only state is the number of samples consumed in the epoch.
///
/// keyed: step s of an epoch takes `global_batch` consecutive positions of the epoch's order (the last step takes the
/// rest). Rank r gets the r-th contiguous block; the first (G mod W) ranks get one more sample.
///
/// pytorch: exactly the order, stride and padding of torch.utils.data.DistributedSampler under a DataLoader of
/// global_batch / world_size samples with the same drop_last. global_batch must be a multiple of the world size, and
/// the world size must not change within an epoch (rank_ids throws DataError at a position that shows a change).
class DistributedSampler {
 public:
  struct Options {
    std::int64_t size = 0;                      ///< samples in the data set
    std::shared_ptr<const EpochOrder> order{};  ///< keyed only; null: every sample once, shuffled as `sampler` says
    std::int64_t global_batch = 1;              ///< samples per step over all ranks
    int world_size = 1;
    std::uint64_t seed = 42;
    SamplerConfig sampler{};
  };
  explicit DistributedSampler(const Options& options);  ///< Throws: DataError (empty data set; pytorch: batch not a
                                                        ///< multiple, or an order is given)
  ~DistributedSampler();
  DistributedSampler(DistributedSampler&&) noexcept;
  DistributedSampler& operator=(DistributedSampler&&) noexcept;

  std::int64_t epoch_length() const noexcept;  ///< positions per epoch, over all ranks (padding or dropping included)
  std::int64_t steps_per_epoch()
      const noexcept;  ///< at least 1; drop_last with a data set smaller than a batch is rejected
  /// Samples of the step that starts at `consumed`, over all ranks. 0: the epoch has ended.
  std::int64_t step_samples(std::int64_t consumed) const noexcept;
  /// Samples of `rank` in that step.
  std::int64_t rank_samples(std::int64_t consumed, int rank) const noexcept;
  /// Sample ids of `rank` in the step that starts at `consumed` of `epoch`, in order. O(ids) (pytorch order: the
  /// permutation of an epoch is computed once, on first use). Not thread-safe.
  void rank_ids(std::int64_t epoch, std::int64_t consumed, int rank, std::vector<std::int64_t>& ids) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// torch.randperm(n) with a CPU generator seeded with `seed`, without torch (MT19937; int64). Throws: DataError if 8 n
/// bytes are not available.
std::vector<std::int64_t> torch_randperm(std::int64_t n, std::uint64_t seed);

}  // namespace lockstep
