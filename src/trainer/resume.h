// Everything that a checkpoint of a run contains.
#pragma once

#include <string>
#include <vector>

#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/parallel/strategy.h>
#include <lockstep/trainer/callback.h>

#include "trainer/callback_list.h"

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
  std::int64_t total_steps;  ///< of the whole run; 0: not limited
};

/// `measured`: metrics of this very step.
CheckpointContents checkpoint_contents(const RunParts& run, const Metrics& measured);

/// Collective in effect: the same on every rank. Throws: CheckpointError (exit 65) when model, data or order do not
/// fit; nothing is changed then. Warns about every hyperparameter that differs, and returns them as texts.
std::vector<std::string> restore(RunParts& run, const CheckpointContents& contents);

}  // namespace lockstep
