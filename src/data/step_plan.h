// The samples of one rank in each step and epoch. Arithmetic only: no threads, no tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <lockstep/data/data_loader.h>
#include <lockstep/sampling/distributed_sampler.h>

namespace lockstep {

/// Micro-batches of a step, the same number on every rank.
std::int64_t micro_batch_count(std::int64_t global_samples, int world_size, std::int64_t batch_size);

/// A resumed run keeps the global batch of the checkpoint unless the user set another one.
std::string kept_global_batch_text(std::int64_t saved, std::int64_t planned, int world_size, std::int64_t batch_size);

/// One step of one rank.
struct StepPlan {
  std::vector<std::int64_t> ids{};  ///< this rank's block
  std::int64_t batch_size = 1;
  std::size_t micro_batches = 0;
  std::int64_t global_samples = 0;
  std::int64_t epoch = 0;
  std::int64_t pass = 0;  ///< over the data; the order and the samples' random numbers depend on it
  bool ends_epoch = false;
  LoaderPosition after{};  ///< after the step, without its order; the end of an epoch is the start of the next

  /// The ids of micro-batch `index`; empty if only other ranks have samples in it.
  std::span<const std::int64_t> micro_ids(std::size_t index) const noexcept;
};

/// Walks through the order of a sampler. Not thread-safe.
class StepPlanner {
 public:
  /// `keep_global_batch`: seek() ignores the global batch of the position. `steps_per_epoch`: of the steps of the
  /// sampler; an epoch is a pass over the data, a part of one, or several passes. `min_steps_per_epoch`: as many at
  /// least.
  StepPlanner(const DistributedSampler::Options& options, std::int64_t batch_size, int rank,
              bool keep_global_batch = true, StepCount steps_per_epoch = {}, std::int64_t min_steps_per_epoch = 0);

  /// Plans the next step into `plan` and reuses its storage. Never ends.
  void next(StepPlan& plan);
  /// Throws: CheckpointError if `position` belongs to another data set; nothing changes then.
  void seek(const LoaderPosition& position);
  /// The position of the next step.
  LoaderPosition position() const { return with_order(position_); }
  /// A position after a step, with the order that it belongs to if it is inside of an epoch.
  LoaderPosition with_order(LoaderPosition position) const;
  std::int64_t steps_per_epoch() const noexcept {
    return std::max(steps_per_epoch_.of(sampler_.steps_per_epoch()), min_steps_per_epoch_);
  }

 private:
  /// Of any data.
  bool is_one_pass() const noexcept { return steps_per_epoch_.is_all() && min_steps_per_epoch_ == 0; }
  void check_order(const LoaderPosition& position) const;
  void take_global_batch(const LoaderPosition& position);
  std::int64_t consumed_before(const LoaderPosition& position) const;
  std::int64_t epoch_samples() const noexcept;
  LoaderPosition position_at(std::int64_t epoch, std::int64_t consumed) const;

  DistributedSampler::Options options_;
  DistributedSampler sampler_;
  std::int64_t batch_size_;
  int rank_;
  bool keep_global_batch_;
  StepCount steps_per_epoch_;
  std::int64_t min_steps_per_epoch_;
  std::string order_;  // its text; only positions that are asked for have it, not those of each step
  LoaderPosition position_;
};

/// A short text that identifies an order; one of the program by its length and its first samples. Throws: DataError if
/// the order has no positions.
std::string describe_order(const DistributedSampler::Options& options);

/// Throws: ConfigError with all numbers out of their range.
void check_loader_plan(const LoaderPlan& plan);

/// For a source whose length is not known, such as a stream: the steps of an epoch; 0: until the source ends. Throws:
/// ConfigError if they are a part of this length, or a minimum is given for it.
std::int64_t fixed_steps_per_epoch(const LoaderPlan& plan);

/// Throws: CheckpointError, also if `position` was saved with another size (0: unknown, accepted).
void check_position(const LoaderPosition& position, std::int64_t dataset_size, std::int64_t most_consumed);

}  // namespace lockstep
