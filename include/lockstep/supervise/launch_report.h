// lockstep/supervise/launch_report.h
//
// What became of the ranks of one machine. Torch-free.
#pragma once

#include <cstdint>
#include <string>

namespace [[gnu::visibility("default")]] lockstep {

struct LaunchReport {
  int exit_code = 0;             ///< 0, or the first failed rank's; 130/75 when stopped on request
  int failed_rank = -1;          ///< -1: none
  std::string failure{};         ///< "rank 1 (pid 71) died of signal 9 (Killed)"
  bool explained = false;        ///< the failed rank said why in its own words
  bool stop_requested = false;   ///< a signal asked for the end
  std::int64_t first_step = -1;  ///< steps done when the last attempt began; -1: not known
  std::int64_t step = -1;        ///< the furthest step that a rank had done; -1: not known
  double training_s = 0;         ///< duration of the last attempt from first_step on
  int restarts = 0;
};

}  // namespace lockstep
