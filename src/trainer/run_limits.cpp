#include "trainer/run_limits.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

namespace lockstep {

void RunLimits::begin_epoch(std::int64_t epoch, std::int64_t first_step, std::int64_t steps) noexcept {
  steps_per_epoch_ = steps;
  epochs_from_ = steps > 0 ? first_step - epoch * steps : 0;
}

std::int64_t RunLimits::steps() const noexcept {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 2;
  const bool is_endless = steps_per_epoch_ > 0 && config_.max_epochs > kMost / steps_per_epoch_;
  const std::int64_t by_epochs = config_.max_epochs == 0 ? 0
                                 : is_endless            ? kMost
                                                         : config_.max_epochs * steps_per_epoch_ + epochs_from_;
  return config_.max_steps > 0 && by_epochs > 0 ? std::min(config_.max_steps, by_epochs)
                                                : std::max(config_.max_steps, by_epochs);
}

bool RunLimits::are_reached(const TrainState& state) const noexcept {
  return (config_.max_steps > 0 && state.step >= config_.max_steps) ||
         (config_.max_epochs > 0 && state.epoch >= config_.max_epochs);
}

std::string RunLimits::reached(const TrainState& state) const {
  const bool by_steps = config_.max_steps > 0 && state.step >= config_.max_steps;
  return by_steps ? fmt::format("--{} {}", config_.fast_dev_run > 0 ? "fast_dev_run" : "max_steps", config_.max_steps)
         : are_reached(state) ? fmt::format("--max_epochs {}", config_.max_epochs)
                              : std::string();
}

bool RunLimits::is_below_minimum(const TrainState& state) const noexcept {
  return state.step < config_.min_steps || state.epoch < config_.min_epochs;
}

bool RunLimits::must_stop(StopKind requested, const TrainState& state) const noexcept {
  return requested > StopKind::program || (requested == StopKind::program && !is_below_minimum(state));
}

}  // namespace lockstep
