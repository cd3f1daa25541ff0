#include <cmath>
#include <numbers>

#include <lockstep/base/error.h>
#include <lockstep/optim/lr_schedule.h>

namespace lockstep {

double lr_factor(const OptimConfig& config, std::int64_t total_steps, std::int64_t step) {
  if (step < config.warmup_steps) {
    return static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps);
  }
  if (config.schedule == ScheduleKind::constant) {
    return 1;
  }
  const std::int64_t end = config.decay_steps > 0 ? config.decay_steps : total_steps;
  LOCKSTEP_ASSERT(end > 0, "a cosine schedule needs a last step");
  if (step >= end) {
    return config.min_lr_ratio;
  }
  const double progress =
      static_cast<double>(step - config.warmup_steps) / static_cast<double>(end - config.warmup_steps);
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return config.min_lr_ratio + (1 - config.min_lr_ratio) * cosine;
}

}  // namespace lockstep
