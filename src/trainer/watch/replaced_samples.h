// Bad samples in whose place a step had others: data.max_bad_samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include <lockstep/data/data_loader.h>
#include <lockstep/world/world.h>

namespace lockstep {

struct ReplacedSample {
  std::int64_t step = 0;    ///< as Step::number()
  int rank = 0;             ///< which had it
  std::int64_t sample = 0;  ///< the bad one
  std::int64_t by = 0;      ///< the one in its place
};

class ReplacedSamples {
 public:
  void add(std::int64_t step, const StepBatches& batches);
  /// Collective. Those of all ranks since the last call, by steps; each bad sample of a rank only the first time, as in
  /// its log.
  std::vector<ReplacedSample> take(World& world);

 private:
  std::set<std::pair<std::size_t, std::int64_t>> known_{};  // loaders and their bad samples on this rank
  std::vector<ReplacedSample> mine_{};                      // of this rank
};

}  // namespace lockstep
