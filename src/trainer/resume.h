// Contents of the checkpoint of a run: collected for a save, restored on resume.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/parallel/strategy.h>
#include <lockstep/trainer/callback.h>

#include "optim/param_groups.h"
#include "trainer/callbacks/callback_list.h"
#include "trainer/epoch_place.h"
#include "trainer/output/run_metrics.h"
#include "trainer/run_limits.h"
#include "trainer/watch/spike_watch.h"

namespace lockstep {

/// The parts of a run that are saved and restored.
struct RunParts {
  const Plan& plan;
  World& world;
  torch::nn::Module& module;
  Strategy& strategy;
  BatchSource& train;
  const CallbackList& callbacks;
  TrainState& state;
  EpochPlace& place;
  RunMetrics& metrics;
  SpikeWatch& spikes;
  RunLimits& limits;
};

/// `measured`: metrics of this step. With checkpoint.weights_only: without what only a resume needs.
CheckpointContents checkpoint_contents(const RunParts& run, const Metrics& measured);

/// The metrics of the step that was saved.
Metrics metrics_of(const CheckpointContents& contents);

/// Where the run was when it was saved. Of another program's checkpoint, the samples are 0.
TrainState saved_state(const CheckpointContents& contents);

/// Whether only the model was saved (checkpoint.weights_only).
bool is_weights_only(const CheckpointContents& contents);

/// Whether the limits of `config` were reached when it was saved.
bool is_of_finished_run(const CheckpointContents& contents, const TrainConfig& config);

/// A run of as many ranks wrote it, which added gradients as Gloo does: not in the order of shared memory.
bool adds_as_gloo(const CheckpointContents& contents, const World& world);

/// Collective: same result on every rank. Throws: CheckpointError (exit 65) if model, data or data order do not match;
/// changes nothing then. Warns about every hyperparameter that differs, and returns their descriptions.
/// Warns also about `schedules` that follow the length of the run, if that has changed. `back`: the process has trained
/// before: callbacks that had no state then lose theirs.
std::vector<std::string> restore(RunParts& run, const CheckpointContents& contents,
                                 std::span<const NamedSchedule> schedules, bool back);

}  // namespace lockstep
