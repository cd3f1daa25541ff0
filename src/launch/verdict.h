// Who failed first, and what the launch returns. Pure: events and times in, a report out. Torch-free.
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include <lockstep/launch/launcher.h>

#include "control/channel.h"
#include "launch/worker_process.h"

namespace lockstep {

/// Collects what happens to the ranks, in the order of arrival. The first primary event decides: an announced failure,
/// a death by a signal that is not ours, an exit that was not announced. A lost peer is secondary: it waits for its
/// cause a while.
class Verdict {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds kWaitForCause{1};

  explicit Verdict(std::vector<pid_t> pids, int first_rank = 0);  ///< rank numbers in texts begin there

  void announced(int rank, const Message& message, Time now);  ///< failure or finished
  void exited(int rank, ExitStatus status);
  void signal_forwarded(int signal) { forwarded_.insert(signal); }  ///< a death by it is no failure
  void killed_by_us() { killed_ = true; }                           ///< the same for SIGKILL
  void killed_by_user();                                            ///< the second Ctrl-C
  void settle(Time now);                                            ///< to be called when events are in and when due
  std::optional<Time> due() const;                          ///< when a secondary failure is blamed for want of another
  bool is_decided() const { return outcome_.has_value(); }  ///< the other ranks have to end

  LaunchReport report() const;  ///< when all ranks are gone
  /// The last thing a user reads: the failure, its exit code, who stopped because of it. "": nothing to say.
  std::string text() const;

 private:
  struct Rank {
    pid_t pid = 0;
    std::optional<int> finished{};
    bool failed = false;  // announced it
    bool gone = false;
    bool ended_well = false;
  };
  struct Outcome {
    int exit_code = 0;
    int rank = -1;  // -1: by request
    std::string what{};
    bool explained = false;
  };
  struct Secondary {
    Outcome outcome{};
    Time due{};
  };
  void decide(Outcome outcome);
  Outcome blame(int rank, std::string_view what, int exit_code, bool explained = false) const;

  int first_rank_ = 0;
  std::vector<Rank> ranks_{};
  std::optional<Outcome> outcome_{};
  std::optional<Secondary> secondary_{};
  std::set<int> forwarded_{};
  bool killed_ = false;
  int stop_code_ = 0;
};

}  // namespace lockstep
