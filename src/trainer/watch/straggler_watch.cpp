#include "trainer/watch/straggler_watch.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/assertion.h"
#include "base/median.h"
#include "world/gather_values.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr double kWindow = 2;          // seconds between exchanges
constexpr double kExchanges = 100;     // that fit into a window: with many ranks, exchanges stay 1 % of the time
constexpr double kShortestWindow = 1;  // in shorter intervals, other programs on the machine distort the times
constexpr double kShare = 0.1;         // of the time of a step; smaller differences are ignored

/// Sent by each rank.
struct Measured {
  StepCost cost{};
  double window = 0;    // seconds
  double exchange = 0;  // seconds, of the shortest one so far
};

std::string duration_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.3g} ms", seconds * 1000) : fmt::format("{:.3g} s", seconds);
}

}  // namespace

double StepCost::step() const noexcept { return std::accumulate(by_phase.begin(), by_phase.end(), 0.0); }

Phase Lag::phase() const noexcept {
  std::size_t largest = 0;
  for (std::size_t i = 1; i < kPhaseCount; ++i) {
    const auto longer_in = [this](std::size_t phase) { return mine.by_phase[phase] - others.by_phase[phase]; };
    largest = longer_in(i) > longer_in(largest) ? i : largest;
  }
  return static_cast<Phase>(largest);
}

Lag lag_of(int rank, std::span<const StepCost> costs) {
  LOCKSTEP_ASSERT(costs.size() > 1, "a rank is compared to others");
  const auto median_of_others = [&](const auto& seconds) {
    std::vector<double> values;
    for (std::size_t other = 0; other < costs.size(); ++other) {
      if (other != static_cast<std::size_t>(rank)) {
        values.push_back(seconds(costs[other]));
      }
    }
    return median(std::move(values));
  };
  Lag lag{.rank = rank, .mine = costs[static_cast<std::size_t>(rank)]};
  lag.others_step = median_of_others([](const StepCost& cost) { return cost.step(); });
  for (std::size_t i = 0; i < kPhaseCount; ++i) {
    lag.others.by_phase[i] = median_of_others([i](const StepCost& cost) { return cost.by_phase[i]; });
  }
  lag.factor = lag.mine.step() / std::max(lag.others_step, 1e-9);
  return lag;
}

Lag largest_lag(std::span<const StepCost> costs) {
  const auto slowest = std::max_element(costs.begin(), costs.end(),
                                        [](const StepCost& a, const StepCost& b) { return a.step() < b.step(); });
  return lag_of(static_cast<int>(slowest - costs.begin()), costs);
}

StragglerWatch::StragglerWatch(World& world, std::string host)
    : world_(world),
      record_(WorldAccess::progress(world)),
      clock_(WorldAccess::clock(world)),
      host_(std::move(host)),
      gpu_before_(clock_.times()),
      gpu_steps_before_(clock_.steps()) {}

void StragglerWatch::begin_step() {
  if (world_.size() > 1) {
    began_ = record_.times();
  }
}

std::optional<StragglerNews> StragglerWatch::end_step(std::int64_t step) {
  if (world_.size() == 1) {
    return {};
  }
  const PhaseTimes now = record_.times();
  steps_time_ += now.now - began_.now;
  if (world_.device().is_cpu()) {
    add(began_, now);
  } else if (const std::int64_t measured = clock_.steps(); measured > std::exchange(gpu_steps_before_, measured)) {
    const PhaseTimes gpu = clock_.times();
    add(std::exchange(gpu_before_, gpu), gpu);
  }
  if (++steps_ < due_) {
    return {};
  }
  const Measured mine{.cost = mean_without_slowest(), .window = Seconds(steps_time_).count(), .exchange = exchange_};
  const auto began = Clock::now();
  const std::vector<Measured> of_ranks = gather_value(world_, mine);
  const double took = Seconds(Clock::now() - began).count();
  exchange_ = exchange_ > 0 ? std::min(exchange_, took) : took;
  const Measured& of_main = of_ranks.front();  // its times are used, so that all ranks agree
  std::vector<StepCost> costs;
  std::ranges::transform(of_ranks, std::back_inserter(costs), &Measured::cost);
  const double wall = of_main.window / static_cast<double>(steps_);
  begin_window(static_cast<std::int64_t>(std::max(kWindow, kExchanges * of_main.exchange) / std::max(wall, 1e-9)));
  const bool all_measured = std::ranges::all_of(costs, [](const StepCost& theirs) { return theirs.step() > 0; });
  return of_main.window < kShortestWindow || !all_measured ? std::nullopt : judge(step, wall, costs);
}

void StragglerWatch::add(const PhaseTimes& begin, const PhaseTimes& end) {
  StepCost cost;
  for (std::size_t i = 0; i < kPhaseCount; ++i) {
    cost.by_phase[i] = Seconds(end.own[i] - begin.own[i]).count();
    sum_.by_phase[i] += cost.by_phase[i];
  }
  slowest_ = cost.step() > slowest_.step() ? cost : slowest_;
  ++costs_;
}

// All ranks have the same numbers, so all of them have the same news and ask for the hosts together.
std::optional<StragglerNews> StragglerWatch::judge(std::int64_t step, double wall, std::span<const StepCost> costs) {
  const auto host_of = [&](int rank) { return world_.gather(host_)[static_cast<std::size_t>(rank)]; };
  const auto name_of = [](int rank, const std::string& host) { return fmt::format("rank {} ({})", rank, host); };
  if (const Lag lag = largest_lag(costs);
      lag.rank != named_ && lag.factor >= kFactor && lag.longer() >= kShare * wall) {
    named_ = lag.rank;
    const std::string host = host_of(lag.rank);
    return StragglerNews{
        .text = fmt::format("{} takes {:.1f} times as long for a step as the others, who wait for it: {} and {}; most "
                            "of the difference is in phase '{}'",
                            name_of(lag.rank, host), lag.factor, duration_text(lag.mine.step()),
                            duration_text(lag.others_step), to_string(lag.phase())),
        .event = "straggler",
        .fields = {{"step", step},
                   {"rank", std::int64_t{lag.rank}},
                   {"host", host},
                   {"factor", lag.factor},
                   {"step_s", lag.mine.step()},
                   {"others_step_s", lag.others_step},
                   {"phase", std::string(to_string(lag.phase()))}}};
  }
  if (named_ && lag_of(*named_, costs).factor < kEnded) {
    const int rank = *std::exchange(named_, std::nullopt);
    return StragglerNews{.text = fmt::format("{} keeps up with the others again", name_of(rank, host_of(rank))),
                         .event = "straggler_ended",
                         .fields = {{"step", step}, {"rank", std::int64_t{rank}}}};
  }
  return {};
}

// It is zero with fewer than two costs: without the slowest one, nothing is left.
StepCost StragglerWatch::mean_without_slowest() const {
  StepCost mean;
  if (costs_ < 2) {
    return mean;
  }
  for (std::size_t i = 0; i < kPhaseCount; ++i) {
    mean.by_phase[i] = (sum_.by_phase[i] - slowest_.by_phase[i]) / static_cast<double>(costs_ - 1);
  }
  return mean;
}

void StragglerWatch::begin_window(std::int64_t steps) {
  steps_time_ = {};
  sum_ = slowest_ = {};
  steps_ = costs_ = 0;
  due_ = std::max(kSteps, steps);
}

}  // namespace lockstep
