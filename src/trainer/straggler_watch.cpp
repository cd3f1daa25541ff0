#include "trainer/straggler_watch.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "world/world_access.h"

namespace lockstep {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr double kWindow = 2;          // seconds between exchanges
constexpr double kShortestWindow = 1;  // in shorter intervals, other programs on the machine distort the times
constexpr double kShare = 0.1;         // of the time of a step; smaller differences are ignored

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Sent by each rank, followed by the host name.
struct Measured {
  StepCost cost{};
  double window = 0;  // seconds
};

std::string encode(const Measured& measured) { return {reinterpret_cast<const char*>(&measured), sizeof measured}; }

Measured decode(std::string_view bytes) {
  LOCKSTEP_ASSERT(bytes.size() >= sizeof(Measured), "every rank sends its costs");
  Measured measured;
  std::memcpy(&measured, bytes.data(), sizeof measured);
  return measured;
}

std::string duration_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.3g} ms", seconds * 1000) : fmt::format("{:.3g} s", seconds);
}

}  // namespace

Lag lag_of(int rank, std::span<const StepCost> costs) {
  LOCKSTEP_ASSERT(costs.size() > 1, "a rank is compared to others");
  std::vector<double> steps;
  std::vector<double> data;
  for (std::size_t other = 0; other < costs.size(); ++other) {
    if (other != static_cast<std::size_t>(rank)) {
      steps.push_back(costs[other].step);
      data.push_back(costs[other].data);
    }
  }
  Lag lag{.rank = rank,
          .mine = costs[static_cast<std::size_t>(rank)],
          .others = {.step = median(std::move(steps)), .data = median(std::move(data))}};
  lag.factor = lag.mine.step / std::max(lag.others.step, 1e-9);
  return lag;
}

Lag largest_lag(std::span<const StepCost> costs) {
  const auto slowest = std::max_element(costs.begin(), costs.end(),
                                        [](const StepCost& a, const StepCost& b) { return a.step < b.step; });
  return lag_of(static_cast<int>(slowest - costs.begin()), costs);
}

StragglerWatch::StragglerWatch(World& world, std::string host)
    : world_(world), record_(WorldAccess::progress(world)), host_(std::move(host)) {}

void StragglerWatch::begin_step() {
  began_ = Clock::now();
  waited_before_ = record_.waited();
}

void StragglerWatch::have_data() { now_.data = own_time(); }

std::optional<StragglerNews> StragglerWatch::end_step(std::int64_t step) {
  now_.step = own_time();
  steps_time_ += Clock::now() - began_;
  sum_.step += now_.step;
  sum_.data += now_.data;
  slowest_ = now_.step > slowest_.step ? now_ : slowest_;
  if (++steps_ < due_ || world_.size() == 1) {
    return {};
  }
  const Measured mine{.cost = mean_without_slowest(), .window = Seconds(steps_time_).count()};
  std::vector<StepCost> costs;
  std::vector<std::string> hosts;
  double window = 0;  // rank 0's value, so that all ranks come to the same result
  for (const std::string& answer : world_.gather(encode(mine) + host_)) {
    const Measured theirs = decode(answer);
    window = costs.empty() ? theirs.window : window;
    costs.push_back(theirs.cost);
    hosts.push_back(answer.substr(sizeof theirs));
  }
  const double wall = window / static_cast<double>(steps_);
  begin_window(static_cast<std::int64_t>(kWindow / std::max(wall, 1e-9)));
  return window < kShortestWindow ? std::nullopt : judge(step, wall, costs, hosts);
}

std::optional<StragglerNews> StragglerWatch::judge(std::int64_t step, double wall, std::span<const StepCost> costs,
                                                   std::span<const std::string> hosts) {
  const auto name_of = [&](int rank) {
    return fmt::format("rank {} ({})", rank, hosts[static_cast<std::size_t>(rank)]);
  };
  if (const Lag lag = largest_lag(costs);
      lag.rank != named_ && lag.factor >= kFactor && lag.mine.step - lag.others.step >= kShare * wall) {
    named_ = lag.rank;
    const bool in_data = lag.mine.data - lag.others.data > (lag.mine.step - lag.others.step) / 2;
    return StragglerNews{
        .text = fmt::format("{} takes {:.1f} times as long for a step as the others, who wait for it: {} and {}; most "
                            "of the difference is {}",
                            name_of(lag.rank), lag.factor, duration_text(lag.mine.step), duration_text(lag.others.step),
                            in_data ? "waiting for data" : "outside of the data loader"),
        .event = "straggler",
        .fields = {{"step", step},
                   {"rank", std::int64_t{lag.rank}},
                   {"host", hosts[static_cast<std::size_t>(lag.rank)]},
                   {"factor", lag.factor},
                   {"step_s", lag.mine.step},
                   {"data_s", lag.mine.data},
                   {"others_step_s", lag.others.step},
                   {"others_data_s", lag.others.data}}};
  }
  if (named_ && lag_of(*named_, costs).factor < kEnded) {
    const int rank = *std::exchange(named_, std::nullopt);
    return StragglerNews{.text = fmt::format("{} keeps up with the others again", name_of(rank)),
                         .event = "straggler_ended",
                         .fields = {{"step", step}, {"rank", std::int64_t{rank}}}};
  }
  return {};
}

StragglerWatch::Clock::duration StragglerWatch::own_time() const {
  return Clock::now() - began_ - (record_.waited() - waited_before_);
}

StepCost StragglerWatch::mean_without_slowest() const {
  const auto mean = [this](Clock::duration sum, Clock::duration slowest) {
    return Seconds(sum - slowest).count() / static_cast<double>(steps_ - 1);
  };
  return {.step = mean(sum_.step, slowest_.step), .data = mean(sum_.data, slowest_.data)};
}

void StragglerWatch::begin_window(std::int64_t steps) {
  steps_time_ = {};
  sum_ = slowest_ = {};
  steps_ = 0;
  due_ = std::max(kSteps, steps);
}

}  // namespace lockstep
