// Exact means over a data set.
#pragma once

#include <functional>

#include <lockstep/trainer/callback.h>

namespace lockstep {

/// Collective. One epoch of `data` from where it stands (at most `max_batches` steps, 0: all), every sample once,
/// weighted by count over all ranks. Evaluation mode and no gradients meanwhile; random numbers, mode and data position
/// are restored.
Metrics evaluate(Task& task, BatchSource& data, World& world, const TrainConfig& config, std::int64_t max_batches,
                 const std::function<void(std::int64_t done)>& on_batch);

}  // namespace lockstep
