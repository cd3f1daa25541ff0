#include <algorithm>

#include <lockstep/trainer/callbacks.h>

namespace lockstep {

void TimeLimit::on(const StageContext& context) {
  const auto now = Clock::now();
  if (context.stage == Stage::checkpoint_saved) {
    const auto save =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(context.save_duration_s));
    longest_save_ = std::max({longest_save_, now - last_step_, save});
  } else if (context.stage == Stage::step_end) {
    longest_step_ = std::max(longest_step_, now - last_step_);
  }
  last_step_ = now;
  context.control.request_stop_at(deadline_ - needed(), "the time limit is near", StopKind::terminate);
}

}  // namespace lockstep
