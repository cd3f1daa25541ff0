// How the ranks of this machine ended, and the result of the launch. Pure: events and times in, a report out.
// Torch-free.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include <lockstep/supervise/launch_report.h>

#include "failure/verdict.h"
#include "ipc/channel.h"
#include "ipc/progress_record.h"
#include "supervise/worker_process.h"

namespace lockstep {

/// How a rank ended, and its state at that time.
struct Ending {
  ExitStatus status{};
  bool of_script = false;  ///< `status` is that of a script; the program that it started has ended, too
  ProgressView place{};
  bool has_trained = false;                    ///< completed a step
  bool tells_steps = true;                     ///< false: a program that does not use this library's run()
  bool out_of_memory = false;                  ///< killed by the kernel's OOM killer
  std::optional<std::int64_t> memory_limit{};  ///< of the control group of the rank
};

/// Collects the failures of the ranks in the order of arrival: announced failures, deaths by a signal that we did not
/// send, unannounced exits, and stalls. A Verdict finds their cause.
class RunOutcome {
 public:
  using Time = Verdict::Time;

  /// Rank numbers in messages begin at `first_rank`.
  RunOutcome(std::string host, const std::vector<pid_t>& pids, int first_rank);

  /// Started, failure or finished.
  void announced(int rank, const Message& message, const ProgressView& place, Time now);
  void exited(int rank, const Ending& ending);
  void stalled(int rank, std::string_view what, std::string hint);
  void signal_forwarded(int signal) { forwarded_.insert(signal); }  ///< a death by this signal is not a failure
  void killed_by_us() { killed_ = true; }                           ///< a death by SIGKILL is not a failure
  void killed_by_user();                                            ///< the second Ctrl-C
  void settle(Time now);                                            ///< call it after events and when due
  std::optional<Time> due() const { return verdict_.due(); }
  bool is_decided() const { return verdict_.cause().has_value(); }  ///< the other ranks must end
  /// The rank has not ended or announced its end, so it must be told to end.
  bool is_unaware(int rank) const;

  LaunchReport report() const;  ///< call it after all ranks have ended
  /// The last message to the user: the failure, its exit code, and the ranks that stopped because of it. "": no
  /// message.
  std::string text() const;

 private:
  struct Rank {
    pid_t pid = 0;
    std::optional<int> finished{};
    bool failed = false;  // has announced a failure
    bool gone = false;
    bool ended_well = false;
  };
  void decide(Failure failure) { verdict_.add(std::move(failure), {}); }
  Failure blame(int rank, std::string_view what, int code) const;
  Failure judge_signal(int rank, const Ending& ending) const;
  Failure judge_exit(int rank, const Ending& ending) const;
  bool is_explained(const Failure& cause) const;

  int first_rank_ = 0;
  std::string host_;
  std::vector<Rank> ranks_{};
  Verdict verdict_{};
  std::set<int> forwarded_{};
  bool killed_ = false;
  bool has_stalled_ = false;
  int stop_code_ = 0;
};

}  // namespace lockstep
