// lockstep/data/data_loader.h
//
// Data set + order + worker threads -> the micro-batches of each step, on the device. Their order depends only on
// (seed, epoch, position).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/data/dataset.h>
#include <lockstep/data/stream.h>
#include <lockstep/plan/plan.h>
#include <lockstep/sampling/epoch_order.h>

namespace [[gnu::visibility("default")]] lockstep {

class World;

/// Position of a source, the same on all ranks. A run can continue from it with any number of ranks (keyed order).
struct LoaderPosition {
  std::int64_t epoch = 0;
  std::int64_t consumed = 0;      ///< samples of the epoch, over all ranks
  std::int64_t dataset_size = 0;  ///< 0: unknown
  std::int64_t global_batch = 0;  ///< samples per step over all ranks; 0: unknown
  std::string state{};            ///< of the source, any bytes
  bool operator==(const LoaderPosition&) const = default;
};

/// The position as text, for CheckpointContents::values: "position.epoch", "position.consumed", ...
std::map<std::string, std::string> position_values(const LoaderPosition& position);
/// The position that position_values() gave; ignores other values. Throws: CheckpointError naming the missing number.
LoaderPosition position_of(const std::map<std::string, std::string>& values);

/// The micro-batches that one loader of a CombinedLoader gave for a step.
struct LoaderBlock {
  std::size_t micro_batches = 0;
  std::int64_t global_samples = 0;  ///< over all ranks
};

/// This rank's part of one step. A source of the program sets Batch::samples, local_samples and global_samples too.
struct StepBatches {
  std::vector<Batch> micro{};         ///< on the device; as many on every rank, an empty one without tensors
  std::int64_t local_samples = 0;     ///< of this rank
  std::int64_t global_samples = 0;    ///< over all ranks; a micro-batch has the weight of its share of them
  std::vector<LoaderBlock> blocks{};  ///< of a CombinedLoader, in the order of `micro`; else empty: one block
  std::int64_t epoch = 0;
  bool ends_epoch = false;
};

/// Source of steps. DataLoader is the usual one; others generate data, combine loaders or serve tests.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// The next step; starts the next epoch itself. nullptr: the source has ended (endless sources never end). Valid
  /// until the next call. Throws: DataError with the indices of the samples and the text of the data set's exception
  /// (an Error of lockstep is rethrown unchanged), in the step of these samples. position() does not advance then; call
  /// seek() to continue elsewhere.
  virtual const StepBatches* next() = 0;
  /// next() that need not wait for data which may never come: if `stop` returns true on a rank while a rank waits, the
  /// result is nullptr on all ranks, position() has not changed, and a later call continues without a loss. The
  /// caller's thread calls `stop`, about ten times per second. Default: next().
  virtual const StepBatches* next_unless([[maybe_unused]] const std::function<bool()>& stop) { return next(); }
  virtual std::optional<std::int64_t> steps_per_epoch() const = 0;
  virtual LoaderPosition position() const = 0;  ///< after the step that the last next() returned
  /// Throws: CheckpointError if the position belongs to another data set.
  virtual void seek(const LoaderPosition& position) = 0;
  /// Dataset::fingerprint(); a resumed run warns if it has changed. "": not known.
  virtual std::string fingerprint() const { return {}; }
  /// True: Batch::loader says which of several loaders a batch is of, and each of them has sample ids of its own.
  virtual bool is_combined() const { return false; }
  /// True: one thread of each rank reads the data, as of a stream; more data.workers than one change nothing.
  virtual bool has_one_reader() const { return false; }
};

/// Never ends; the caller sets limits. The number of workers does not change the batches. A loader of a data set keeps
/// no reference to `world`.
class DataLoader final : public BatchSource {
 public:
  /// Collective: compares Dataset::fingerprint() and the order on all ranks. `order`: null: every sample once, as
  /// plan.sampler says. Throws: DataError (the data set is null or empty); ConfigError (numbers below their minimum);
  /// CommError (exit 78) naming the rank with other data.
  DataLoader(std::shared_ptr<const Dataset> data, const LoaderPlan& plan, World& world,
             std::shared_ptr<const EpochOrder> order = {});
  /// Collective, as are next() and, with drop_last, seek(): every data.prefetch steps the ranks exchange how many
  /// samples they have, so that streams of different lengths end in the same step. Keeps a reference to `world`. Of the
  /// sampler's settings only drop_last applies: an epoch ends before the first step that is not full on every rank.
  /// Throws: DataError (the stream is null), ConfigError.
  DataLoader(std::unique_ptr<Stream> stream, const LoaderPlan& plan, World& world);
  /// For models without data: every step has one micro-batch of one sample without tensors on each rank. Positions
  /// count steps.
  static DataLoader none(std::int64_t steps_per_epoch, World& world);
  DataLoader(DataLoader&&) noexcept;
  /// Calls Stream::cancel() and waits until the threads have ended.
  ~DataLoader() override;

  const StepBatches* next() override;
  const StepBatches* next_unless(const std::function<bool()>& stop) override;
  std::optional<std::int64_t> steps_per_epoch() const override;
  LoaderPosition position() const override;
  void seek(const LoaderPosition& position) override;
  std::string fingerprint() const override;
  bool has_one_reader() const override;

 private:
  struct Impl;
  explicit DataLoader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
