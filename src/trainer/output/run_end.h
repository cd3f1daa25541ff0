// The last lines of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/config/train_config.h>
#include <lockstep/plan/plan.h>
#include <lockstep/trainer/train_state.h>

#include "report/console.h"
#include "trainer/agreed_stop.h"
#include "trainer/output/run_files.h"
#include "trainer/output/time_shares.h"

namespace lockstep {

struct RunEnd {
  const Plan& plan;
  std::int64_t step = 0;
  std::int64_t epoch = 0;  ///< that of the last step, from 1
  std::string limit{};     ///< "--max_epochs 1": the setting that ended the run, if one did
  StopReason stop{};
  bool saved = false;
  bool was_finished = false;           ///< before this start, so that nothing was to do
  std::vector<std::string> changed{};  ///< settings that changed since the checkpoint was written
};

/// How the command that continues such a run differs from this one: " without --fresh"; "": not at all. `saved`: it
/// has a checkpoint of its own, in `directory`.
std::string change_of_command(const Plan& plan, const std::string& directory, bool saved);

/// After a failure of a run that saves: "step 20 is saved in runs/a; ..." and how to resume from it. `step`: nullopt:
/// none is saved yet.
std::string describe_saved(const Plan& plan, const std::string& directory, std::optional<std::int64_t> step);

/// Where, why, and how to go on: "stopped at step 20, epoch 1: SIGTERM, saved in runs/a; run the same command again to
/// continue".
std::string describe_end(const RunEnd& end);

/// Where the time of a fit went on this rank.
struct RunTimes {
  TimeShares host;
  std::optional<TimeShares> gpu{};  ///< of the steps that were measured, if any
  bool one_reader = false;          ///< of the data of the training; see BatchSource
  double waits_for_calls = 0;       ///< share of the steps: DeviceClock::close_steps; 0: CUDA graphs cannot change it
};

/// What to do if the GPU waited for the calls of the host in most steps. `share`: of the steps.
std::optional<std::string> advice_on_calls(double share);

/// Into the log of events, the files of metrics and the console. `epoch`: that of the last step, from 1.
void tell_end(const FitResult& result, std::int64_t epoch, const RunTimes& times, const TrainConfig& config,
              World& world, Console& console, RunFiles& files);

/// "loss 0.21, val_loss 0.25 | best val_loss 0.24 at step 800 in runs/a/checkpoints/step-0000000800 | time 1:02:03"
std::string summary(const FitResult& result, const std::string& monitor);

}  // namespace lockstep
