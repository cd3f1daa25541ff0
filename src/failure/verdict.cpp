#include "failure/verdict.h"

#include <utility>

namespace lockstep {

void Verdict::add(Failure failure, Time now) {
  if (cause_) {
    return;
  }
  if (!failure.is_consequence) {
    cause_ = std::move(failure);
  } else if (!consequence_) {
    consequence_ = std::move(failure);
    due_ = now + deadlines::kWaitForCause;
  }
}

void Verdict::settle(Time now, bool nothing_follows) {
  if (consequence_ && !cause_ && (nothing_follows || now >= due_)) {
    cause_ = consequence_;
  }
}

std::optional<Verdict::Time> Verdict::due() const {
  return consequence_ && !cause_ ? std::optional(due_) : std::nullopt;
}

}  // namespace lockstep
