// lockstep/data/dataset.h
//
// Where samples come from. Randomness in a data set (augmentation, cropping) takes its seed from SampleSeed alone:
// LibTorch's generators (at::rand, at::randperm) are shared by the worker threads, and their numbers would depend on
// which came first.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include <lockstep/data/batch.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Random numbers that depend on (seed, epoch, sample) and on nothing else: not on workers, ranks or batches. The value
/// seeds a generator of the sample's own: std::mt19937_64 or at::detail::createCPUGenerator. Frozen: never changes.
struct SampleSeed {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::uint64_t operator()(std::int64_t sample) const noexcept;
};

/// Map-style data. get() is called by several threads at once and builds a whole micro-batch, so that tensors can be
/// sliced with one index_select instead of N calls.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  /// Thread-safe. Same ids and seed: same batch. `ids` is not empty. `samples` and `ids` of the batch may be left
  /// empty: the loader fills them in. Runs without autograd graph; in a worker, tensor operations use one thread.
  virtual Batch get(std::span<const std::int64_t> ids, const SampleSeed& seed) const = 0;
  /// One line that another data set would not have, cheaply: a DataLoader refuses ranks whose lines differ. Default:
  /// "1000 samples"; override it where files may differ between nodes (a hash of an index, a version).
  virtual std::string fingerprint() const;
};

/// Rows of tensors in memory. Shape: input [N, ...], target [N, ...] or undefined.
/// Throws: DataError (no input, or another number of targets).
std::shared_ptr<Dataset> tensor_dataset(at::Tensor input, at::Tensor target = {});

/// One sample at a time, stacked by the library along a new dimension 0: all tensors of a batch's samples have one
/// shape and type. `extra` of the batch is a std::vector<std::any> of theirs, if they have any. An exception of `get`
/// becomes a DataError with the sample's index and the original text.
std::shared_ptr<Dataset> sample_dataset(std::int64_t size,
                                        std::function<Batch(std::int64_t id, std::uint64_t seed)> get);

/// The samples `ids` of another data set, renumbered from 0; each keeps the seed it has there. `ids` are kept.
/// Throws: DataError (an id that is not there).
std::shared_ptr<Dataset> subset(std::shared_ptr<const Dataset> data, std::vector<std::int64_t> ids);

}  // namespace lockstep
