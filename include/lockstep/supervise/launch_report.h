// lockstep/supervise/launch_report.h
//
// How the ranks of one machine ended. Torch-free.
#pragma once

#include <cstdint>
#include <string>

namespace [[gnu::visibility("default")]] lockstep {

/// How a launch ended.
struct LaunchReport {
  int exit_code = 0;               ///< 0, or that of the first failed rank; 130/75 after a requested stop
  int failed_rank = -1;            ///< -1: none
  std::string failure{};           ///< "rank 1 (pid 71) died of signal 9 (Killed)"
  bool explained = false;          ///< the failed rank reported the reason itself
  bool stop_requested = false;     ///< a signal requested a stop
  bool ended_by_signal = false;    ///< it ended ranks or the wait for a restart: no rank acted on the request
  std::int64_t first_step = -1;    ///< completed steps of all fits at the start of the last attempt; -1: unknown
  std::int64_t step = -1;          ///< the highest step of the last fit that any rank completed; -1: unknown
  std::int64_t earlier_steps = 0;  ///< of the fits before the last one
  double training_s = 0;           ///< duration of the last attempt since first_step
  int restarts = 0;

  std::int64_t all_steps() const noexcept { return earlier_steps + step; }  ///< completed steps of all fits
};

}  // namespace lockstep
