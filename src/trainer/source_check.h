// What a training and the loops over data need of a BatchSource of the program. A number that it left out would
// otherwise be a batch without samples, or a weight of infinity.
#pragma once

#include <lockstep/config/train_config.h>
#include <lockstep/data/data_loader.h>

namespace lockstep {

/// Throws: DataError if a batch has rows and no samples.
void check_samples(const StepBatches& step);
/// Also throws: DataError if the step has samples, but not their numbers.
void check_step(const StepBatches& step);
/// Throws: ConfigError if the step has several micro-batches although dist.static_graph allows one.
void check_micro_batches(const StepBatches& step, const DistConfig& config, int ranks);

}  // namespace lockstep
