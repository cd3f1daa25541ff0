#include <lockstep/config/lr_schedule.h>

#include "fuzz/target.h"

namespace lockstep::fuzz {

LOCKSTEP_FUZZ_TARGET(lr_schedule) {
  const LrSchedule schedule(input);
  if (!schedule.problems().empty()) {
    return;
  }
  const LrSchedule again(schedule.text());
  promise(again.problems().empty() && again == schedule, "a text that means the same when it is read again", input);
  ScheduleStep run{.total_steps = 1000, .steps_per_epoch = 10};
  if (schedule.problems_in(run).empty()) {
    for (const std::int64_t step : {0, 1, 10, 999, 1000, 1'000'000'000}) {
      run.step = step;
      promise(schedule.factor(run) >= 0, "a factor that is not negative", input);
    }
  }
}

}  // namespace lockstep::fuzz
