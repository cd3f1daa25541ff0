// The running statistics of batch norm for given weights.
#pragma once

#include <cstdint>

#include <lockstep/trainer/callback.h>

namespace lockstep {

/// Collective. Replaces the running statistics of the batch norm layers that are in training mode, as
/// torch.optim.swa_utils.update_bn does: the mean over the micro-batches of all ranks, with equal weights. Calls
/// Task::training_step without gradients for so many training steps, from the beginning of the current epoch, at most
/// to its end. `context`: that of Stage::fit_end.
void update_batch_norm(const StageContext& context, std::int64_t steps);

/// Collective. Calls Task::training_step for a first batch, in evaluation mode and without effects, if there are layers
/// that update_batch_norm would update: an error shows before the training, not at its end. `context`: that of
/// Stage::fit_start, before the first step. Throws: ConfigError (the task has no training_step).
void check_batch_norm_update(const StageContext& context);

}  // namespace lockstep
