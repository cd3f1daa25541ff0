// Exact means over a data set.
#pragma once

#include <functional>
#include <optional>

#include <lockstep/trainer/callback.h>

#include "ipc/progress_record.h"
#include "trainer/callbacks/callback_list.h"

namespace lockstep {

struct Evaluation {
  Metrics means{};        ///< empty if a stop came first
  bool complete = false;  ///< all requested batches were used
  bool is_part = false;   ///< EvaluationOptions::max_batches has left out data
};

/// `output`: null before the step of the batch.
using BatchFunction = std::function<void(const Batch& batch, const StepOutput* output)>;

struct EvaluationOptions {
  StepOutput (Task::*step)(const Batch&) = &Task::validation_step;
  Phase phase = Phase::validation;
  std::int64_t max_batches = 0;                            ///< maximum number of steps; 0: no limit
  std::optional<StopKind> least_stop = StopKind::program;  ///< weaker stops do not end it; nullopt: no stop does
  std::function<void(std::int64_t done)> on_step = [](std::int64_t) {};
  BatchFunction on_batch_start{};  ///< before each batch of this rank
  BatchFunction on_batch_end{};    ///< after it
};

/// Calls the callbacks of the context's stage. Empty if there are none.
BatchFunction batch_callbacks(CallbackList& callbacks, const StageContext& context);

/// Collective. Validates on the current epoch of `data`, from its beginning, every sample once, weighted by count over
/// all ranks. Runs in evaluation mode without gradients, then restores the random generators and the training flag of
/// every submodule. A stop request on any rank ends it between two batches. Afterwards `data` is where it was.
Evaluation evaluate(Task& task, BatchSource& data, World& world, const TrainConfig& config, const TrainControl& control,
                    const EvaluationOptions& options = {});

}  // namespace lockstep
