#include "trainer/output/step_times.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/assertion.h"
#include "trainer/output/time_shares.h"
#include "world/gather_values.h"
#include "world/world_access.h"

namespace lockstep {

StepTimes::StepTimes(World& world, RunFiles& files) : world_(world), files_(files) {}

StepTimes::Moment StepTimes::now(std::int64_t step) {
  if (world_.device().is_cpu()) {
    return {.times = WorldAccess::progress(world_).times(), .step = step, .measured = step};
  }
  DeviceClock& clock = WorldAccess::clock(world_);
  return {.times = clock.times(), .step = step, .measured = clock.steps()};
}

void StepTimes::begin(std::int64_t step) { since_ = now(step); }

void StepTimes::report(std::int64_t step) {
  const Moment end = now(step);
  const auto measured = static_cast<double>(end.measured - since_.measured);  // 0: this rank sends NaN
  const Moment begin = measured > 0 ? std::exchange(since_, end) : since_;
  const TimeShares shares(begin.times, end.times);
  const auto milliseconds = [measured](double seconds) { return std::round(1e6 * seconds / measured) / 1e3; };
  std::vector<std::string> names{"steps", "step_ms"};
  std::vector<double> values{static_cast<double>(end.step - begin.step), milliseconds(shares.total())};
  for (const auto& [name, seconds] : shares.parts()) {
    names.push_back(fmt::format("{}_ms", name));
    values.push_back(milliseconds(seconds));
  }
  const std::vector<std::vector<double>> all = gather_values(world_, values);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    LOCKSTEP_ASSERT(all[rank].size() == names.size(), "every rank sends its times");
    if (std::isnan(all[rank][1])) {
      continue;
    }
    std::vector<MetricValue> row{{.name = "rank", .value = static_cast<double>(rank)}};
    for (std::size_t i = 0; i < names.size(); ++i) {
      row.push_back({.name = names[i], .value = all[rank][i]});
    }
    files_.step_times(step, row);
  }
}

}  // namespace lockstep
