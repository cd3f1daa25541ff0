// lockstep/data/cache.h
//
// Samples that are dear to make, made once. What is kept is the sample as the data set gives it in epoch 0: random
// augmentation belongs behind the cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include <lockstep/data/dataset.h>

namespace [[gnu::visibility("default")]] lockstep {

class World;

/// All samples in memory, made now. When they would need more than `most_bytes` by the size of the first one: a warning
/// with both numbers, and `data` itself. Every rank has a copy of its own. Throws: what `data` throws; DataError
/// (samples that differ in shape, that have `extra`).
std::shared_ptr<const Dataset> memory_cache(std::shared_ptr<const Dataset> data, std::int64_t most_bytes);

/// Collective. All samples in `directory`, one .npy file per tensor, mapped. Rank 0 makes them while the others wait,
/// then each of the others opens them, or makes them where it has a disk of its own. A cache that is not complete, or
/// is of other data by Dataset::fingerprint(), is made anew. What fails on one rank fails on all. Throws: as above;
/// IoError.
std::shared_ptr<const Dataset> disk_cache(std::shared_ptr<const Dataset> data, const std::filesystem::path& directory,
                                          World& world);

}  // namespace lockstep
