#include "launch/goodput.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/text.h"

namespace lockstep {
void Goodput::add(const LaunchReport& attempt) {
  ++attempts_;
  const std::int64_t reached = attempt.all_steps();
  if (attempt.first_step < 0 || reached <= attempt.first_step) {
    return;
  }
  const std::int64_t steps = reached - attempt.first_step;
  const std::int64_t again = std::clamp<std::int64_t>(furthest_ - attempt.first_step, 0, steps);
  repeated_ += again;
  productive_s_ += attempt.training_s * static_cast<double>(steps - again) / static_cast<double>(steps);
  furthest_ = std::max(furthest_, reached);
}

std::string Goodput::text(double wall_s) const {
  const std::string restarts = counted(this->restarts(), "restart");
  if (furthest_ < 0) {
    return restarts;
  }
  return fmt::format("{}, {} repeated, {:.1f} % of the time was productive", restarts, counted(repeated_, "step"),
                     100 * std::min(1.0, productive_s_ / std::max(wall_s, 1e-9)));
}

}  // namespace lockstep
