// Exact means over a data set.
#pragma once

#include <functional>

#include <lockstep/trainer/callback.h>

namespace lockstep {

struct Evaluation {
  Metrics means{};        ///< empty when the stop came first
  bool stopped = false;   ///< all ranks agreed on a stop meanwhile
  bool complete = false;  ///< every batch that was asked for counts
};

struct EvaluationOptions {
  std::int64_t max_batches = 0;  ///< steps at most; 0: all
  std::function<void(std::int64_t done)> on_batch = [](std::int64_t) {};
};

/// Collective. One epoch of `data` from where it stands, every sample once, weighted by count over all ranks.
/// Evaluation mode and no gradients meanwhile; afterwards random numbers and the training flag of every submodule are
/// as before. A stop that `control` was asked for on any rank ends it between two batches; the data then stand where
/// they stood.
Evaluation evaluate(Task& task, BatchSource& data, World& world, const TrainConfig& config, const TrainControl& control,
                    const EvaluationOptions& options = {});

}  // namespace lockstep
