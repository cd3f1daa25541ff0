// lockstep/data/stream.h
//
// Data without indices: generated, or read from somewhere in the order in which it comes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <lockstep/data/batch.h>

namespace [[gnu::visibility("default")]] lockstep {

/// One rank's stream. Called by one thread at a time, not always the same one. It divides the data over the ranks
/// itself (every world_size-th record, a shard of its own); lengths may differ: the loader agrees the end.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Begins an epoch, also in the middle of another one. `world_size` streams share the data, this is number `rank`.
  virtual void start_epoch(std::int64_t epoch, int rank, int world_size) = 0;
  /// A batch of at most `most` samples (`samples`, else the rows of `input`); nullopt: this rank's epoch is over. With
  /// fewer samples than asked for it is not: the loader takes what it gets as one micro-batch.
  virtual std::optional<Batch> next(std::int64_t most) = 0;
  /// Moves on over `samples` samples of the epoch, for a run that continues. Default: reads and drops them; override it
  /// where that can be done at once.
  virtual void skip(std::int64_t samples);
};

/// One sample at a time, stacked by the library like those of sample_dataset. `start` makes an epoch's source, which
/// gives nullopt at its end.
using SampleSource = std::function<std::optional<Batch>()>;
std::unique_ptr<Stream> sample_stream(std::function<SampleSource(std::int64_t epoch, int rank, int world_size)> start);

}  // namespace lockstep
