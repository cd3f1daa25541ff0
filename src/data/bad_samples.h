// Other samples in place of those that cannot be used.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>

#include <lockstep/data/dataset.h>
#include <lockstep/plan/plan.h>

namespace lockstep {

/// Builds batches of a data set in which some samples may be bad: they fail to load or, with data.check_finite, have
/// NaN or infinity. A bad sample is replaced by its neighbour, the next sample that is not bad: the number of samples
/// per step does not change, and the replacement depends only on the bad sample. Thread-safe.
class BadSamples {
 public:
  /// Replaces up to `max_bad_samples` distinct samples. `hint`: of the errors about others.
  explicit BadSamples(const DataConfig& config,
                      std::string hint = "--data.max_bad_samples N replaces up to N such samples of each rank")
      : most_(config.max_bad_samples), check_finite_(config.check_finite), hint_(std::move(hint)) {}

  /// As Dataset::get(); sets `ids`, `replaced` and `bad_ids` of the batch if a sample was replaced. Throws: the
  /// exception of the data set (as a DataError naming the samples, unless it is an Error), or a DataError about NaN or
  /// infinity, once there are more bad samples than allowed.
  Batch get(const Dataset& data, std::span<const std::int64_t> ids, const SampleSeed& seed);

 private:
  Batch load(const Dataset& data, std::span<const std::int64_t> ids, const SampleSeed& seed) const;
  void throw_of_first(const Dataset& data, std::span<const std::int64_t> ids, const SampleSeed& seed) const;
  std::int64_t neighbour(const Dataset& data, std::int64_t id, const SampleSeed& seed);
  void note(std::int64_t id, const std::exception& error);

  std::int64_t most_;
  bool check_finite_;
  std::string hint_;
  std::mutex mutex_;
  std::set<std::int64_t> known_{};
};

}  // namespace lockstep
