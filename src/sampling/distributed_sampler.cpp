#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/sampling/distributed_sampler.h>

#include "base/ceil_div.h"
#include "base/option_check.h"

namespace lockstep {
namespace {

using Options = DistributedSampler::Options;

bool is_keyed(const Options& options) { return options.sampler.order == SampleOrder::keyed; }

// Positions of an epoch over all ranks.
std::int64_t count_positions(const Options& options) {
  if (is_keyed(options)) {
    const std::int64_t positions = options.order ? options.order->length() : options.size;
    return positions - (options.sampler.drop_last ? positions % options.global_batch : 0);
  }
  const std::int64_t ranks = options.world_size;
  if (!options.sampler.drop_last) {
    return ceil_div(options.size, ranks) * ranks;  // DistributedSampler repeats the first indices
  }
  const std::int64_t per_rank =
      options.size / ranks;  // DistributedSampler drops the tail, DataLoader the last smaller batch
  return (per_rank - per_rank % (options.global_batch / ranks)) * ranks;
}

void check(const Options& options) {
  OptionCheck("DistributedSampler")
      .expect("global_batch", options.global_batch, options.global_batch >= 1, "1 or more")
      .expect("world_size", options.world_size, options.world_size >= 1, "1 or more")
      .throw_problems();
  if (options.size <= 0) {
    throw DataError("the data set is empty", "check the path and the split of the data set");
  }
  if (!is_keyed(options) && options.order) {
    throw DataError("sampler.order pytorch: the program uses its own order",
                    "use --sampler.order keyed; PyTorch's DistributedSampler does not support other orders");
  }
  if (!is_keyed(options) && options.global_batch % options.world_size != 0) {
    throw DataError(fmt::format("sampler.order pytorch: the global batch of {} on {} ranks is not a multiple of {}",
                                options.global_batch, options.world_size, options.world_size),
                    "change global_batch_size, or use --sampler.order keyed, which splits any batch");
  }
  if (options.sampler.drop_last && count_positions(options) == 0) {
    throw DataError(fmt::format("sampler.drop_last leaves no samples: the data set has {}, a step needs {}",
                                options.order ? options.order->length() : options.size, options.global_batch),
                    "use a smaller global_batch_size, or keep the last step");
  }
}

/// torch_randperm uses 32 bits of its seed, and a later pass of an epoch has its number in the upper 32 bits.
std::uint64_t pytorch_seed(std::uint64_t seed, std::int64_t epoch) {
  const auto number = static_cast<std::uint64_t>(epoch);
  return seed + number + (number >> 32) * 0x9E3779B9;
}

}  // namespace

struct DistributedSampler::Impl {
  Options options;
  std::int64_t positions = 0;

  // pytorch order: the permutation of epoch `epoch`.
  std::vector<std::int64_t> permutation{};
  std::int64_t epoch = std::numeric_limits<std::int64_t>::min();

  void keyed_ids(std::int64_t first, std::int64_t count, std::int64_t of_epoch, std::int64_t* ids) const {
    if (options.order) {
      options.order->fill({options.seed, of_epoch, options.global_batch}, first,
                          {ids, static_cast<std::size_t>(count)});
      return;
    }
    if (!options.sampler.shuffle) {
      std::iota(ids, ids + count, first);
      return;
    }
    KeyedPermutation(options.size, options.seed, of_epoch).fill(first, {ids, static_cast<std::size_t>(count)});
  }

  void pytorch_ids(std::int64_t first, std::int64_t count, std::int64_t of_epoch, std::int64_t* ids) {
    if (options.sampler.shuffle && epoch != of_epoch) {
      permutation = torch_randperm(options.size, pytorch_seed(options.seed, of_epoch));
      epoch = of_epoch;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t position = (first + i * options.world_size) % options.size;  // padding repeats from the start
      ids[i] = options.sampler.shuffle ? permutation[static_cast<std::size_t>(position)] : position;
    }
  }
};

DistributedSampler::DistributedSampler(const Options& options) {
  check(options);
  impl_ = std::make_unique<Impl>(Impl{.options = options, .positions = count_positions(options)});
}

DistributedSampler::~DistributedSampler() = default;
DistributedSampler::DistributedSampler(DistributedSampler&&) noexcept = default;
DistributedSampler& DistributedSampler::operator=(DistributedSampler&&) noexcept = default;

std::int64_t DistributedSampler::epoch_length() const noexcept { return impl_->positions; }

std::int64_t DistributedSampler::steps_per_epoch() const noexcept {
  return ceil_div(impl_->positions, impl_->options.global_batch);
}

std::int64_t DistributedSampler::step_samples(std::int64_t consumed) const noexcept {
  return std::clamp<std::int64_t>(impl_->positions - consumed, 0, impl_->options.global_batch);
}

std::int64_t DistributedSampler::rank_samples(std::int64_t consumed, int rank) const noexcept {
  return share_of(step_samples(consumed), impl_->options.world_size, rank);
}

void DistributedSampler::rank_ids(std::int64_t epoch, std::int64_t consumed, int rank,
                                  std::vector<std::int64_t>& ids) const {
  const std::int64_t ranks = impl_->options.world_size;
  if (rank < 0 || rank >= ranks || consumed < 0) {
    throw ConfigError(
        fmt::format("DistributedSampler: found rank {} at position {}, expected a rank from 0 to {} and a "
                    "position of 0 or more",
                    rank, consumed, ranks - 1));
  }
  const std::int64_t count = rank_samples(consumed, rank);
  ids.resize(static_cast<std::size_t>(count));
  if (is_keyed(impl_->options)) {
    const std::int64_t first = consumed + share_begin(step_samples(consumed), ranks, rank);
    impl_->keyed_ids(first, count, epoch, ids.data());
    return;
  }
  if (consumed % ranks != 0) {
    throw DataError(fmt::format("sampler.order pytorch: position {} of epoch {} is not a multiple of {} ranks",
                                consumed, epoch, ranks),
                    "in this order the world size cannot change within an epoch; resume with the same number of ranks");
  }
  impl_->pytorch_ids(consumed + rank, count, epoch, ids.data());
}

namespace {

std::vector<std::int64_t> zeros(std::int64_t n) try {
  return std::vector<std::int64_t>(static_cast<std::size_t>(n));
} catch (const std::exception&) {  // std::bad_alloc or std::length_error
  throw DataError(
      fmt::format("sampler.order pytorch: the order of {} samples does not fit into the memory of this rank", n),
      "use --sampler.order keyed, which needs no memory");
}

}  // namespace

std::vector<std::int64_t> torch_randperm(std::int64_t n, std::uint64_t seed) {
  OptionCheck("torch_randperm").expect("n", n, n >= 0, "0 or more").throw_problems();
  std::mt19937 engine(static_cast<std::uint32_t>(seed));  // PyTorch also uses only the low half of the seed
  std::vector<std::int64_t> order = zeros(n);
  const std::size_t size = order.size();
  if (size < std::numeric_limits<std::uint32_t>::max() / 20) {
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = 0; i + 1 < size; ++i) {
      std::swap(order[i], order[i + engine() % (size - i)]);
    }
    return order;
  }
  for (std::size_t i = 0; i < size; ++i) {  // 32 random bits are too coarse from here on: 64, inside out
    const std::uint64_t high = engine();
    const std::uint64_t random = (high << 32) | engine();
    order[i] = static_cast<std::int64_t>(i);
    std::swap(order[i], order[random % (i + 1)]);
  }
  return order;
}

}  // namespace lockstep
