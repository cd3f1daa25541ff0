// lockstep/data/data_loader.h
//
// Data set + order + worker threads -> the micro-batches of each step, on the device, in an order that depends on
// nothing but (seed, epoch, position).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <lockstep/data/dataset.h>
#include <lockstep/data/stream.h>
#include <lockstep/plan/plan.h>
#include <lockstep/sampling/epoch_order.h>

namespace [[gnu::visibility("default")]] lockstep {

class World;

/// Where a source stands, the same on all ranks. Enough to continue at any number of ranks (keyed order).
struct LoaderPosition {
  std::int64_t epoch = 0;
  std::int64_t consumed = 0;      ///< samples of the epoch, over all ranks
  std::int64_t dataset_size = 0;  ///< 0: unknown
  std::int64_t global_batch = 0;  ///< samples per step over all ranks; 0: unknown
  std::string state{};            ///< what else the source keeps, in words of its own
  bool operator==(const LoaderPosition&) const = default;
};

/// This rank's part of one step.
struct StepBatches {
  std::vector<Batch> micro{};  ///< as many on every rank; an empty one has samples == 0 and no tensors
  std::int64_t local_samples = 0;
  std::int64_t global_samples = 0;  ///< over all ranks, known without communication
  std::int64_t epoch = 0;
  bool ends_epoch = false;
};

/// Where steps come from. DataLoader is the usual one; generated data, combined loaders and tests are others.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// The next step, rolling into the next epoch by itself; nullptr: nothing left (endless sources never end).
  /// Valid until the next call. Throws: DataError with the samples' indices and the text of what the data set threw (an
  /// Error of this library unchanged), in the step that the samples belong to; position() stays before it, and seek()
  /// goes elsewhere.
  virtual const StepBatches* next() = 0;
  virtual std::optional<std::int64_t> steps_per_epoch() const = 0;
  virtual LoaderPosition position() const = 0;  ///< after the step that next() returned last
  /// Throws: CheckpointError when the position is not of this data set.
  virtual void seek(const LoaderPosition& position) = 0;
};

/// Endless: limits are the caller's. The batches are the same with any number of workers. Of a data set, keeps nothing
/// of `world`.
class DataLoader final : public BatchSource {
 public:
  /// Collective: compares Dataset::fingerprint() and the order over the ranks. `order`: null: every sample once, as
  /// plan.sampler says. Throws: DataError (no data set, nothing in it); ConfigError (numbers below their smallest
  /// value); CommError (exit 78) naming the rank that has other data.
  DataLoader(std::shared_ptr<const Dataset> data, const LoaderPlan& plan, World& world,
             std::shared_ptr<const EpochOrder> order = {});
  /// Collective, and next() as well: every data.prefetch steps the ranks tell each other how many samples they have, so
  /// that streams of different lengths end in the same step; seek() is not. Keeps `world`. A sampler's settings do not
  /// apply, but for drop_last: an epoch ends before the first step that is not full on every rank. Throws: DataError
  /// (no stream), ConfigError.
  DataLoader(std::unique_ptr<Stream> stream, const LoaderPlan& plan, World& world);
  /// Models without data: every step has one micro-batch of one sample without tensors on each rank. Positions count
  /// steps.
  static DataLoader none(std::int64_t steps_per_epoch, World& world);
  DataLoader(DataLoader&&) noexcept;
  ~DataLoader() override;

  const StepBatches* next() override;
  std::optional<std::int64_t> steps_per_epoch() const override;
  LoaderPosition position() const override;
  void seek(const LoaderPosition& position) override;

 private:
  struct Impl;
  explicit DataLoader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
