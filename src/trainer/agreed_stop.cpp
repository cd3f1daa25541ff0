#include "trainer/agreed_stop.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/text.h"

namespace lockstep {

bool AgreedStop::look() { return ++batches_ >= due_ && look_now(); }

bool AgreedStop::look_now() {
  if (!least_) {
    return false;
  }
  const auto now = Clock::now();
  // At most twice the previous number: the first batches may be faster than the others.
  const double seconds = std::max(1e-9, std::chrono::duration<double>(now - looked_).count());
  const auto in_a_second = static_cast<std::int64_t>(
      std::min(static_cast<double>(batches_) / seconds, 2 * static_cast<double>(std::max(due_, batches_))));
  const bool mine = is_asked();
  const std::vector<std::string> answers =
      world_.gather(fmt::format("{}{}", mine ? 's' : '-', std::max<std::int64_t>(1, in_a_second)));
  due_ = world_.size() == 1 ? 1 : parse_int(std::string_view(answers.front()).substr(1)).value_or(1);  // rank 0
  batches_ = 0;
  looked_ = now;
  return std::any_of(answers.begin(), answers.end(), [](const std::string& answer) { return answer.front() == 's'; });
}

StopReason agree_on_reason(World& world, const TrainControl& control) {
  StopReason agreed{.kind = StopKind::program};
  for (const auto& answer :
       world.gather(fmt::format("{} {}", static_cast<int>(control.stop_requested()), control.stop_reason()))) {
    const auto theirs = static_cast<StopKind>(answer.front() - '0');
    if (theirs >= agreed.kind) {
      agreed = {.kind = theirs, .text = answer.substr(2)};
    }
  }
  return agreed;
}

}  // namespace lockstep
