// What a fit checks and tells before its first step.
#pragma once

#include <cstdint>
#include <memory>

#include <lockstep/fwd.h>
#include <lockstep/parallel/strategy.h>

#include "trainer/fit.h"
#include "trainer/output/run_files.h"

namespace lockstep {

/// Throws: ConfigError if the program's function returned none.
std::unique_ptr<Strategy> strategy_of(const TrainerParts& trainer);
/// Throws: ConfigError if a setting names a metric of the validation and there is none.
void check_monitored_data(const TrainConfig& config, bool validates);
/// Throws: CheckpointError if checkpoints cannot hold a tensor of the module.
void check_dtypes(const torch::nn::Module& module);

/// For the main rank.
void tell_evaluation_mode(const torch::nn::Module& module);
void tell_start(const Plan& plan, World& world, RunFiles& files);

/// By which a learning rate or a loss for batches of `reference` samples is multiplied.
double batch_factor(LrScaling scaling, std::int64_t global_batch, std::int64_t reference);

}  // namespace lockstep
