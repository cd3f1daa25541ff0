#include <algorithm>
#include <cmath>

#include <lockstep/config/step_count.h>

namespace lockstep {

std::int64_t StepCount::of(std::int64_t all) const noexcept {
  if (!is_part_) {
    return number_ == 0 ? all : number_;
  }
  return std::max(std::int64_t{1}, static_cast<std::int64_t>(std::llround(static_cast<double>(all) * percent_ / 100)));
}

}  // namespace lockstep
