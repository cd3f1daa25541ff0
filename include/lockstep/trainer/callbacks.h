// lockstep/trainer/callbacks.h
//
// Callbacks that come with the library.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include <lockstep/trainer/callback.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Stops and saves before a deadline, such as the end of a batch job. It stops when the remaining time is too short for
/// two more steps and a save, each as long as the longest so far. run() then returns 75: the same command resumes the
/// run. The Trainer adds a TimeLimit if max_time_s is set or the plan knows when the batch job ends.
class TimeLimit final : public Callback {
 public:
  using Clock = std::chrono::steady_clock;

  explicit TimeLimit(Clock::time_point deadline) : deadline_(deadline) {}

  std::string_view name() const override { return "time_limit"; }
  std::uint32_t stages() const override { return Stage::fit_start | Stage::step_end | Stage::checkpoint_saved; }
  void on(const StageContext& context) override;

 private:
  Clock::duration needed() const { return 2 * longest_step_ + longest_save_; }

  Clock::time_point deadline_;
  Clock::time_point last_step_{};
  Clock::duration longest_step_{};
  Clock::duration longest_save_{};  // from the end of the step, including a validation before the save
};

}  // namespace lockstep
