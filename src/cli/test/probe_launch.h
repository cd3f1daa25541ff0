// One launch of the ranks of `lockstep test`, by `lockstep run`: a process that is watched until nothing of it is left.
// Torch-free.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/base/variables.h>

#include "base/json.h"
#include "supervise/signal_inbox.h"

namespace lockstep {

struct ProbeCommand {
  std::filesystem::path probe{};
  int ranks = 1;
  std::vector<std::string> flags{};  ///< of the probe
  Variables environment{};
};

struct ProbeOutcome {
  std::vector<Json> lines{};       ///< of rank 0: see src/probe/results.h
  std::string errors{};            ///< standard error of all
  int code = 0;                    ///< 128 + N for signal N
  double met_s = -1;               ///< from the start until the ranks had met; -1: they did not
  double ending_s = 0;             ///< from the last line until the end
  bool timed_out = false;          ///< everything was killed at the deadline
  std::optional<int> signal{};     ///< that this process received; everything was killed
  std::vector<int> left_behind{};  ///< pids of ranks that were still there some seconds after the end

  /// The line with these values; nullptr: there is none.
  const Json* measured(std::string_view name) const;
};

/// The program that the tool starts. Throws: LaunchError (not_found) if this installation has none.
std::filesystem::path find_probe();

/// Blocks. Main thread only. Throws: LaunchError.
ProbeOutcome launch_probe(const ProbeCommand& command, std::chrono::steady_clock::time_point deadline,
                          SignalInbox& signals);

}  // namespace lockstep
