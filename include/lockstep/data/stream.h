// lockstep/data/stream.h
//
// Data without indices: generated, or read in the order in which it arrives.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <lockstep/data/batch.h>
#include <lockstep/data/padding.h>

namespace [[gnu::visibility("default")]] lockstep {

/// The stream of one rank. Called by one thread at a time, but not always by the same one. It divides the data over the
/// ranks itself (every world_size-th record, or one shard per rank). The lengths may differ: the loader makes all ranks
/// end together.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Starts an epoch, even if another one has not ended. `world_size` streams share the data; this is the one of
  /// `rank`. A later pass k of an epoch (data.steps_per_epoch) has the number epoch + k 2^32: the epoch is in the lower
  /// 32 bits.
  virtual void start_epoch(std::int64_t epoch, int rank, int world_size) = 0;
  /// A batch of at most `most` samples (`samples`, else the rows of `input`); nullopt: the epoch of this rank has
  /// ended. A smaller batch does not end the epoch: the loader uses it as one micro-batch. With sampler.drop_last only
  /// the last batch of the epoch may be smaller; another one is a DataError.
  virtual std::optional<Batch> next(std::int64_t most) = 0;
  /// Skips `samples` samples of the epoch, for a resumed run. Default: reads and drops them; override it if there is a
  /// faster way.
  virtual void skip(std::int64_t samples);
  /// Called once, when no more samples are wanted: at the end of the loader, by another thread than the one that may be
  /// in next(), skip() or start_epoch() at this moment. These should then return soon, with whatever they have; it is
  /// not used. Override it if they wait for something that may never come. Default: does nothing.
  virtual void cancel() noexcept {}
};

/// A stream that is read one sample at a time; the library stacks the samples as in sample_dataset, with `paddings`.
/// `start` returns the source of an epoch, which returns nullopt at its end and is not called again. `cancel` is
/// Stream::cancel. Throws: DataError (`start` is missing); ConfigError with all invalid paddings.
using SampleSource = std::function<std::optional<Batch>()>;
std::unique_ptr<Stream> sample_stream(std::function<SampleSource(std::int64_t epoch, int rank, int world_size)> start,
                                      std::vector<Padding> paddings = {}, std::function<void()> cancel = {});

}  // namespace lockstep
