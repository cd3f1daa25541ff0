// lockstep/data/replay_buffer.h
//
// Data that the program produces while it trains, as in reinforcement learning.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <lockstep/data/data_loader.h>

namespace [[gnu::visibility("default")]] lockstep {

class World;

/// The last transitions of this rank, and a source of steps that draws from them uniformly, with replacement. The
/// program calls add() between steps, for example in a callback; the step after it may draw the new transitions.
/// Nothing is read ahead, so data.workers and data.prefetch have no effect. Sample i of a step is row
/// hash(seed, epoch, position of i in the epoch) x size() / 2^64, where the ranks have consecutive blocks of positions,
/// as in a data set: ranks with the same content draw the same global batch whatever their number is. Every rank has a
/// buffer of its own. Not thread-safe.
///
/// A position is the number of samples drawn. The content is not part of it and is not saved in checkpoints: after a
/// resume the program fills the buffer again, and a run that continues equals one without an interruption only if it
/// restores the same content.
class ReplayBuffer final : public BatchSource {
 public:
  /// `capacity`: transitions of this rank. Without data.steps_per_epoch the first epoch never ends. Throws:
  /// ConfigError.
  ReplayBuffer(std::int64_t capacity, const LoaderPlan& plan, const World& world);
  ~ReplayBuffer() override;

  /// Adds the rows of a batch, in order; the oldest are overwritten. Shape: all tensors [N, ...]; fields, dtypes and
  /// shapes are those of the first call, on whose devices the memory is allocated. Throws: DataError (other tensors
  /// than in the first call; no tensor; `extra`).
  void add(const Batch& transitions);
  std::int64_t size() const;
  std::int64_t capacity() const;

  /// Throws: DataError if the buffer is empty.
  const StepBatches* next() override;
  std::optional<std::int64_t> steps_per_epoch() const override;
  LoaderPosition position() const override;
  void seek(const LoaderPosition& position) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
