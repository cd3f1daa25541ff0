// data/bad_samples.h
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <span>

#include <lockstep/data/dataset.h>

namespace lockstep {

/// Builds batches of a data set that may fail to give some of its samples. The place of a bad sample is taken by its
/// neighbour, the next one in the data set's own numbering that is well: a step keeps its number of samples, and which
/// sample is taken depends on nothing but the bad one. Thread-safe.
class BadSamples {
 public:
  /// `most`: distinct samples that may be replaced; 0: none.
  explicit BadSamples(std::int64_t most) : most_(most) {}

  /// As Dataset::get(); `ids` of the batch are filled in when a sample was replaced. Throws: what the data set threw
  /// (as a DataError naming the samples, if it was no Error), from the bad sample on that is one too many.
  Batch get(const Dataset& data, std::span<const std::int64_t> ids, const SampleSeed& seed);

 private:
  std::int64_t neighbour(const Dataset& data, std::int64_t id, const SampleSeed& seed);
  void note(std::int64_t id, const std::exception& error);

  std::int64_t most_;
  std::mutex mutex_;
  std::set<std::int64_t> known_{};
};

}  // namespace lockstep
