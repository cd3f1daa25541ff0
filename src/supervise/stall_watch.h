// Detects stalled ranks. Pure: records, process states and times in, findings out. Torch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ipc/progress_record.h"
#include "supervise/process_state.h"

namespace lockstep {

struct StallLimits {
  std::chrono::milliseconds warning{30'000};    ///< 0: no warning
  std::chrono::milliseconds deadline{300'000};  ///< 0: never
  std::chrono::milliseconds rendezvous{0};      ///< for ranks in the rendezvous; 0: never
  /// Warning and deadline after a stop request, because batch systems usually kill after 30 s. The deadline grows to
  /// twice the longest time of a step.
  std::chrono::milliseconds stop_warning{5'000};
  std::chrono::milliseconds stop_deadline{20'000};
};

/// One rank at one moment.
struct RankSample {
  ProgressView view{};
  ProcessState process{};
  pid_t pid = 0;
  bool running = true;  ///< false: it has ended, and no rank waits for it
};

struct StallFinding {
  std::vector<std::string> lines{};
  std::vector<int> ranks{};  ///< the ranks that it concerns, as indices of the samples
  bool ends_the_run = false;
  std::string what{};  ///< the failure of these ranks, if it ends the run
  std::string hint{};
};

/// A run has stalled if the ranks that are furthest behind make no progress, because the others wait for them. A change
/// of its record is progress of a rank. Between steps (start, save, validation and callbacks can take long) use of CPU
/// time, from 4 % of a core on, is progress as well, and the deadline does not apply. It applies inside a step, after
/// the work, to stopped processes, and if all ranks wait in collectives: there, a long silence means a hang. The
/// rendezvous has a separate limit. If several ranks are at the same place and the system prevents one from running,
/// that rank is the cause. A process in a debugger is never ended. A stopped process is reported only if two
/// consecutive samples show it, because profilers and leak checkers stop a process for a moment. A rank without a
/// record is ignored.
class StallWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kPeriod{500};
  static constexpr std::chrono::milliseconds kLongestGap{1000};  ///< longer: the watcher was suspended

  /// `sees_all`: there are no other ranks, on other machines. `first_rank`: the number in texts of the first sample.
  StallWatch(StallLimits limits, int ranks, bool sees_all, int first_rank = 0)
      : limits_(limits), sees_all_(sees_all), first_rank_(first_rank), ranks_(static_cast<std::size_t>(ranks)) {}

  std::vector<StallFinding> observe(const std::vector<RankSample>& samples, Time now);
  /// The time since the last samples does not count.
  void leave_out(Time now);
  void stop_asked_for(Time now);  ///< the shorter limits apply from now on
  /// Takes the limits of the program, which its record has when the program has read its settings.
  void take_limits(const ProgressRecord& record);

 private:
  struct Rank {
    std::optional<std::uint64_t> beats{};
    std::int64_t cpu_ticks = 0;
    Time moved{};
    struct Stop {
      char seen = 0;   // the state T or t in the last sample
      char noted = 0;  // the state that was reported
    } stop{};
  };
  void note_movement(const std::vector<RankSample>& samples, Time now);
  void report_stops(const std::vector<RankSample>& samples, std::vector<StallFinding>& findings);
  void report_stall(const std::vector<RankSample>& samples, Time now, std::vector<StallFinding>& findings);
  /// `behind`: the ranks that are furthest behind. `still`: how long. `limit`: that of the run, which ends; nullopt:
  /// this is a warning.
  StallFinding describe_stall(const std::vector<RankSample>& samples, const std::vector<int>& behind,
                              Time::duration still, std::optional<std::chrono::milliseconds> limit) const;
  Time last_movement(const std::vector<RankSample>& samples, const std::vector<int>& behind);
  std::optional<std::chrono::milliseconds> limit_of(const RankSample& sample) const;

  StallLimits limits_;
  bool sees_all_;
  int first_rank_;
  bool all_wait_ = false;  // all ranks of the run wait in collectives, now
  std::vector<Rank> ranks_;
  std::optional<Time> last_{};
  std::optional<Time> warned_since_{};  // start of the reported stall
  bool ended_ = false;
  std::optional<Time> stop_at_{};
  Time last_movement_{};
  bool in_step_ = false;  // in the last sample
  Time::duration longest_pause_{};
};

/// The ranks for which all others wait: those with the fewest steps, then collectives, then phases.
std::vector<int> furthest_behind(const std::vector<RankSample>& samples);

/// "  ranks 0,2-3: step 812, backward, in collective 4104: all-reduce of 1.0 MiB", one line per different state.
std::vector<std::string> stall_table(const std::vector<RankSample>& samples, int first_rank);

/// Ranks that are in a different collective than the majority; empty: none.
std::vector<int> in_another_collective(const std::vector<RankSample>& samples);

/// Whether two ranks call different collectives with the same number. The run then fails, whichever rank fails first.
bool call_different_collectives(const std::vector<RankSample>& samples);

}  // namespace lockstep
