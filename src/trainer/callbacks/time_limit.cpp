#include <algorithm>

#include <lockstep/trainer/callbacks.h>

namespace lockstep {

void TimeLimit::on(const StageContext& context) {
  if (context.strategy == nullptr) {
    return;  // an evaluation outside of fit()
  }
  const auto now = Clock::now();
  const auto passed = now - last_;
  if (context.stage == Stage::step_end) {
    longest_step_ = std::max(longest_step_, passed);
  } else if (context.stage == Stage::validation_end) {
    longest_validation_ = std::max(longest_validation_, passed);
  } else if (context.stage == Stage::checkpoint_saved) {
    const auto save =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(context.save_duration_s));
    longest_save_ = std::max({longest_save_, passed, save});
  }
  last_ = now;
  context.control.request_stop_at(deadline_ - needed(), "the time limit is near", StopKind::terminate);
}

}  // namespace lockstep
