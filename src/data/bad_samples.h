// data/bad_samples.h
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <span>

#include <lockstep/data/dataset.h>

namespace lockstep {

/// Builds batches of a data set in which some samples may fail to load. A bad sample is replaced by its neighbour, the
/// next sample that loads: the number of samples per step does not change, and the replacement depends only on the bad
/// sample. Thread-safe.
class BadSamples {
 public:
  /// `most`: maximum number of distinct samples that may be replaced; 0: none.
  explicit BadSamples(std::int64_t most) : most_(most) {}

  /// As Dataset::get(); sets `ids` and `replaced` of the batch if a sample was replaced. Throws: the exception of the
  /// data set (as a DataError naming the samples, unless it is an Error) once there are more bad samples than allowed.
  Batch get(const Dataset& data, std::span<const std::int64_t> ids, const SampleSeed& seed);

 private:
  std::int64_t neighbour(const Dataset& data, std::int64_t id, const SampleSeed& seed);
  void note(std::int64_t id, const std::exception& error);

  std::int64_t most_;
  std::mutex mutex_;
  std::set<std::int64_t> known_{};
};

}  // namespace lockstep
