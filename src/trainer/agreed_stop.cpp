#include "trainer/agreed_stop.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "world/gather_values.h"

namespace lockstep {

namespace {

// Batches may suddenly become slower; a stop then waits for so many of them. A check costs a fraction of a millisecond.
constexpr std::int64_t kMostBatches = 16;

}  // namespace

bool AgreedStop::look() { return ++batches_ >= due_ && look_now(); }

bool AgreedStop::look_now() {
  if (!least_) {
    return false;
  }
  const auto now = Clock::now();
  const double seconds = std::max(1e-9, std::chrono::duration<double>(now - looked_).count());
  // At most twice the previous number: the first batches may be faster than the others.
  const std::int64_t most = std::min(kMostBatches, 2 * std::max(due_, batches_));
  const double in_a_second = std::clamp(static_cast<double>(batches_) / seconds, 1.0, static_cast<double>(most));
  struct Answer {
    std::int64_t is_asked;
    std::int64_t due;
  };
  const std::vector<Answer> answers =
      gather_value(world_, Answer{is_asked() ? 1 : 0, static_cast<std::int64_t>(in_a_second)});
  due_ = world_.size() == 1 ? 1 : answers.front().due;  // rank 0
  batches_ = 0;
  looked_ = now;
  return std::ranges::any_of(answers, [](const Answer& answer) { return answer.is_asked != 0; });
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
