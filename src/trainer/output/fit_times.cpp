#include "trainer/output/fit_times.h"

namespace lockstep {

FitTimes::FitTimes(ProgressRecord& record, DeviceClock& clock)
    : record_(record),
      clock_(clock),
      host_(record.times()),
      gpu_(clock.times()),
      gpu_steps_(clock.steps()),
      close_steps_(clock.close_steps()) {}

RunTimes FitTimes::until_now(bool one_reader) {
  RunTimes times{.host = {host_, record_.times()}, .one_reader = one_reader};
  if (const std::int64_t steps = clock_.steps() - gpu_steps_; steps > 0) {
    times.gpu.emplace(gpu_, clock_.times());
    if (could_have_graphs_) {
      times.waits_for_calls = static_cast<double>(clock_.close_steps() - close_steps_) / static_cast<double>(steps);
    }
  }
  return times;
}

}  // namespace lockstep
