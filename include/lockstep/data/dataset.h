// lockstep/data/dataset.h
//
// Sources of samples. A data set with random operations (augmentation, cropping) must take its seeds from SampleSeed:
// the worker threads share LibTorch's generators (at::rand, at::randperm), so their numbers would depend on the order
// of the threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <lockstep/data/batch.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Random numbers that depend only on (seed, epoch, sample), not on workers, ranks or batches. Seed a generator per
/// sample with the value: std::mt19937_64 or at::detail::createCPUGenerator. The values never change between versions.
/// A later pass k of an epoch (data.steps_per_epoch) has the number epoch + k 2^32: the epoch is in the lower 32 bits.
struct SampleSeed {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::uint64_t operator()(std::int64_t sample) const noexcept;
};

/// Map-style data. get() builds a whole micro-batch, so that one index_select can replace N calls.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  /// Thread-safe: several threads call it at once. The same ids, never none, and seed give the same batch: one row of
  /// input, target and weight for each id, or any number of rows if it sets `samples`. `samples` and `ids` of the batch
  /// may stay empty: the loader sets them. Runs without autograd graph; in a worker, operations use one thread.
  virtual Batch get(std::span<const std::int64_t> ids, const SampleSeed& seed) const = 0;
  /// One line that identifies the data and is cheap to compute: a DataLoader throws if the lines of the ranks differ,
  /// and a resumed run warns if the line has changed. Default: "1000 samples". Override it if other data may have the
  /// same size (a hash of an index, a version).
  virtual std::string fingerprint() const;
};

/// Rows of tensors in memory. Shape: input [N, ...], target [N, ...] or undefined.
/// Throws: DataError (no input, or a different number of targets).
std::shared_ptr<Dataset> tensor_dataset(at::Tensor input, at::Tensor target = {});
/// The same with all tensors of `tensors`: input, and if there are any, target, weight and fields, [N, ...] each. Other
/// members are not used. Throws: DataError (as above; a field is undefined; `extra`).
std::shared_ptr<Dataset> tensor_dataset(const Batch& tensors);

/// Data that is read one sample at a time. The library stacks the samples along a new dimension 0, so all samples of a
/// batch must have the same shapes and dtypes. `extra` of the batch is a std::vector<std::any> of the samples' `extra`,
/// if any. An exception of `get` becomes a DataError with the index of the sample and the original text. `name`: tells
/// these data from others of the same size in the fingerprint, for example a path and a version; see disk_cache.
std::shared_ptr<Dataset> sample_dataset(std::int64_t size,
                                        std::function<Batch(std::int64_t id, std::uint64_t seed)> get,
                                        std::string name = {});

/// The samples `ids` of another data set, renumbered from 0; each keeps its seed. Keeps a copy of `ids`. Throws:
/// DataError (`data` is null; an id out of range).
[[nodiscard]] std::shared_ptr<Dataset> subset(std::shared_ptr<const Dataset> data, std::vector<std::int64_t> ids);

/// The first `count` samples of `data`, or all if there are fewer. Throws: DataError (`data` is null; `count` is
/// negative).
[[nodiscard]] std::shared_ptr<Dataset> take(std::shared_ptr<const Dataset> data, std::int64_t count);

/// Several data sets, one after another: sample i of part k has the number i + the sizes of the parts before it, and
/// `ids` of the batches are these numbers. The first part keeps the seeds of its samples. Every later part has a seed
/// of its own, derived from the run's seed and its index k: a data set that is given twice is augmented differently.
/// Throws: DataError (no part; a part is null). get() throws DataError if the samples of a batch come from several
/// parts and have different fields, dtypes or shapes.
std::shared_ptr<Dataset> concat(std::vector<std::shared_ptr<const Dataset>> parts);

}  // namespace lockstep
