// lockstep/data/cache.h
//
// Caches for samples that are expensive to produce. A cache holds each sample as the data set returns it in epoch 0, so
// random augmentation must be applied after the cache. Threads make the samples: as many as LibTorch computes with in
// the rank; for a disk_cache, in all ranks of the machine. Every ten seconds a line of the log says how many samples
// are left.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include <lockstep/data/dataset.h>

namespace [[gnu::visibility("default")]] lockstep {

class World;

/// Loads all samples into memory now. If they would need more than `most_bytes`, estimated from the first sample, it
/// logs a warning with both numbers and returns `data` itself. Every rank has its own copy. Throws: DataError (with the
/// number of the sample and the text of the data set's exception; samples of different shapes or with `extra`, or not
/// one row of each tensor for each sample).
std::shared_ptr<Dataset> memory_cache(std::shared_ptr<const Dataset> data, std::int64_t most_bytes);

/// Collective. Stores all samples in `directory`, one memory-mapped .npy file per tensor (of bytes for a dtype that
/// these files do not have, such as bf16). Rank 0 writes them while the others wait; then each other rank opens them,
/// or writes them if it has a separate disk. An incomplete cache, or one of other data by Dataset::fingerprint(), is
/// written again. What the fingerprint does not tell, such as another version of a function that makes or maps the
/// samples, is not noticed: give sample_dataset(), map() and map_batches() a name that tells it, or use another
/// `directory`. An error of one rank is thrown on all ranks. Throws: as above; IoError.
std::shared_ptr<Dataset> disk_cache(std::shared_ptr<const Dataset> data, const std::filesystem::path& directory,
                                    World& world);

}  // namespace lockstep
