#include "trainer/validation_times.h"

#include <cmath>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep {

void ValidationTimes::begin(std::int64_t steps_per_epoch) {
  set_steps_per_epoch(steps_per_epoch);
  note_validation();
}

void ValidationTimes::set_steps_per_epoch(std::int64_t steps) {
  if (config_.every_epochs > 0 && config_.every_epochs < 1 && steps == 0) {
    throw ConfigError(
        fmt::format("--validate.every_epochs {}: the number of steps per epoch is not known", config_.every_epochs),
        "use --validate.every_steps N, or set --data.steps_per_epoch N");
  }
  steps_per_epoch_ = steps;
}

bool ValidationTimes::is_due(const TrainState& state, std::int64_t step_of_epoch, bool ends_epoch) const {
  if (config_.every_steps > 0 && state.step % config_.every_steps == 0) {
    return true;
  }
  if (config_.every_epochs >= 1) {
    return ends_epoch && state.epoch % static_cast<std::int64_t>(config_.every_epochs) == 0;
  }
  if (config_.every_epochs == 0) {
    return false;
  }
  const double steps = config_.every_epochs * static_cast<double>(steps_per_epoch_);
  const auto parts = [&](std::int64_t step) { return std::floor(static_cast<double>(step) / steps + 1e-9); };
  const std::int64_t step = ends_epoch ? steps_per_epoch_ : step_of_epoch;
  return parts(step) > parts(step - 1);
}

}  // namespace lockstep
