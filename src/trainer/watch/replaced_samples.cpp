#include "trainer/watch/replaced_samples.h"

#include <algorithm>
#include <cstddef>

#include "world/gather_values.h"

namespace lockstep {

void ReplacedSamples::add(std::int64_t step, const StepBatches& batches) {
  for (const Batch& batch : batches.micro) {
    // A source of the program may have changed one of the lists.
    const std::size_t count = std::min(batch.bad_ids.size(), batch.replaced.size());
    for (std::size_t i = 0; i < count; ++i) {
      const auto row = static_cast<std::size_t>(batch.replaced[i]);
      if (row < batch.ids.size() && known_.emplace(batch.loader, batch.bad_ids[i]).second) {
        mine_.push_back({.step = step, .sample = batch.bad_ids[i], .by = batch.ids[row]});
      }
    }
  }
}

std::vector<ReplacedSample> ReplacedSamples::take(World& world) {
  for (ReplacedSample& one : mine_) {
    one.rank = world.rank();
  }
  std::vector<ReplacedSample> all;
  for (const std::vector<ReplacedSample>& of_rank : gather_values(world, mine_)) {
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  }
  mine_.clear();
  std::ranges::stable_sort(all, {}, &ReplacedSample::step);
  return all;
}

}  // namespace lockstep
