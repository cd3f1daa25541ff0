// Prints the factors of schedules: reads lines "STEPS TOTAL_STEPS STEPS_PER_EPOCH SCHEDULE", writes one line of factors
// for each.
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>

#include <lockstep/config/lr_schedule.h>

int main() {
  lockstep::ScheduleStep at;
  std::int64_t steps = 0;
  std::string text;
  while (std::cin >> steps >> at.total_steps >> at.steps_per_epoch >> text) {
    const lockstep::LrSchedule schedule(text);
    if (!schedule.problems().empty() || !schedule.problems_in(at).empty()) {
      std::fprintf(stderr, "invalid schedule: %s\n", text.c_str());
      return 1;
    }
    for (at.step = 0; at.step < steps; ++at.step) {
      std::printf("%.17g ", schedule.factor(at));
    }
    std::puts("");
  }
}
