#include "trainer/watch/replaced_samples.h"

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <string>

#include <fmt/format.h>

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
  std::string text;
  for (const ReplacedSample& one : mine_) {
    text += fmt::format("{} {} {} ", one.step, one.sample, one.by);
  }
  mine_.clear();
  std::vector<ReplacedSample> all;
  int rank = 0;
  for (const std::string& of_rank : world.gather(text)) {
    std::istringstream numbers(of_rank);
    for (ReplacedSample one{.rank = rank}; numbers >> one.step >> one.sample >> one.by;) {
      all.push_back(one);
    }
    ++rank;
  }
  std::ranges::stable_sort(all, {}, &ReplacedSample::step);
  return all;
}

}  // namespace lockstep
