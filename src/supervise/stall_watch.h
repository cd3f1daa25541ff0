// Who stands still, and since when. Pure: records, process states and times in, findings out. Torch-free.
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
  std::chrono::milliseconds rendezvous{0};      ///< for ranks that look for each other; 0: never
  /// The first two after a stop was asked for: whoever asked waits for 30 s, as a rule. The second grows to twice the
  /// longest pause of a step, which may be a long one.
  std::chrono::milliseconds stop_warning{5'000};
  std::chrono::milliseconds stop_deadline{20'000};
};

/// One rank at one moment.
struct RankSample {
  ProgressView view{};
  ProcessState process{};
  pid_t pid = 0;
  bool running = true;  ///< false: gone, nobody waits for it
};

struct StallFinding {
  std::vector<std::string> lines{};
  std::vector<int> ranks{};  ///< whom it is about
  bool ends_the_run = false;
  std::string what{};  ///< the failure of these ranks, where it ends the run
  std::string hint{};
};

/// A run stands still when the ranks that are furthest behind do not move: the others wait for them. A rank moves when
/// its record changes. Between steps (start, save, validation, callbacks, which may take long) CPU time counts as well,
/// and there the deadline ends nothing: only inside a step, after the work, or for a process that is stopped, is long
/// silence no work. Ranks that look for each other have a limit of their own. Of ranks that stand at the same place one
/// that the system does not let run is the cause. A process in a debugger is never ended. A stop is reported when two
/// looks in a row see it, because profilers and leak checkers hold a process for a moment. A rank that never wrote its
/// record is not judged.
class StallWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kPeriod{500};
  static constexpr std::chrono::milliseconds kLongestGap{1000};  ///< longer: the watcher itself was suspended

  StallWatch(StallLimits limits, int ranks) : limits_(limits), ranks_(static_cast<std::size_t>(ranks)) {}

  std::vector<StallFinding> observe(const std::vector<RankSample>& samples, Time now);
  void stop_asked_for(Time now);  ///< from now on there is less patience

 private:
  struct Rank {
    std::optional<std::uint64_t> beats{};
    std::int64_t cpu_ticks = 0;
    Time moved{};
    struct Stop {
      char seen = 0;   // the state T or t at the last look
      char noted = 0;  // the one that was reported
    } stop{};
  };
  void note_movement(const std::vector<RankSample>& samples, Time now);
  void report_stops(const std::vector<RankSample>& samples, std::vector<StallFinding>& findings);
  void report_stall(const std::vector<RankSample>& samples, Time now, std::vector<StallFinding>& findings);
  Time last_movement(const std::vector<RankSample>& samples, const std::vector<int>& behind);
  std::optional<std::chrono::milliseconds> limit_of(const RankSample& sample) const;

  StallLimits limits_;
  std::vector<Rank> ranks_;
  std::optional<Time> last_{};
  std::optional<Time> warned_since_{};  // the beginning of the stall that was reported
  bool ended_ = false;
  std::optional<Time> stop_at_{};
  Time last_movement_{};
  bool in_step_ = false;  // at the last look
  Time::duration longest_pause_{};
};

/// The ranks that all others wait for: those with the fewest steps, then collectives, then phases behind them.
std::vector<int> furthest_behind(const std::vector<RankSample>& samples);

/// "  ranks 0,2-3: step 812, backward, in collective 4104: all-reduce of 1.0 MiB", one line per different state.
std::vector<std::string> stall_table(const std::vector<RankSample>& samples);

/// Ranks that are in another collective than most of the others; empty: there are none.
std::vector<int> in_another_collective(const std::vector<RankSample>& samples);

/// Two ranks are in the collective of one number and call different ones: that cannot end well, whoever fails first.
bool call_different_collectives(const std::vector<RankSample>& samples);

}  // namespace lockstep
