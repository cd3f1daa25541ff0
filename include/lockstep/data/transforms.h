// lockstep/data/transforms.h
//
// Changes of the samples of a data set: augmentation, normalisation, other fields. docs/data.md has examples.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <lockstep/data/dataset.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Each sample of `data` changed by `f`. The tensors of `sample` have no batch dimension: the input of an image is
/// [C, H, W]; `extra` is its own one, not a vector. The results are stacked as in sample_dataset; images may have
/// different sizes before `f`, but not after it. `f` is called by several threads at once. It takes its random numbers
/// from `seed`, which is SampleSeed of the sample, so they do not depend on workers, ranks or batches. `data` is read
/// with a seed derived from the run's seed, so that two maps, one after the other, have independent random numbers.
/// size() and ids are those of `data`. So is fingerprint(), with `name` if it is given: without a name, a disk_cache of
/// the result does not notice another `f`; change the name, such as "resize, version 2", with the function.
/// Throws: DataError (`data` is null, `f` is missing). get() throws DataError, naming the sample, if `f` throws.
[[nodiscard]] std::shared_ptr<Dataset> map(std::shared_ptr<const Dataset> data,
                                           std::function<Batch(Batch sample, std::uint64_t seed)> f,
                                           std::string name = {});

/// Each batch of `data` changed by `f`: cheaper for operations that treat all samples alike and have no random
/// numbers. Everything else is as in `map`; exceptions of `f` name the samples of the batch. `ids`, and `samples` if it
/// is 0, are restored after `f`.
std::shared_ptr<Dataset> map_batches(std::shared_ptr<const Dataset> data, std::function<Batch(Batch batch)> f,
                                     std::string name = {});

}  // namespace lockstep
