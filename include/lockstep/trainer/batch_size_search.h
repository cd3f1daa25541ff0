// lockstep/trainer/batch_size_search.h
//
// The largest micro-batch that every rank can train, before the real training.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/data/data_loader.h>
#include <lockstep/plan/plan.h>
#include <lockstep/trainer/task.h>
#include <lockstep/world/world.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Which sizes find_batch_size() tries, and how.
struct BatchSizeSearchOptions {
  std::int64_t init = 2;         ///< the first size; doubled while it fits, else halved until one fits
  std::int64_t max_size = 8192;  ///< the largest size to try
  bool bisect = false;     ///< then look for the exact size between the last that fits and the first that does not
  std::int64_t steps = 3;  ///< of each trial; from the second one on the optimizer has its state
  /// Share of the device's memory that a trial must leave free, for what only the training has: callbacks that copy the
  /// weights, longer samples, fragmentation.
  double margin = 0.05;
};

/// One size that was tried.
struct BatchSizeTrial {
  std::int64_t batch_size = 0;
  std::vector<int> full_ranks{};  ///< ranks that ran out of memory; empty: the size fits
};

/// What find_batch_size() found; the same on all ranks.
struct BatchSizeSearch {
  std::int64_t largest = 0;  ///< samples per micro-batch that every rank has trained
  BatchPlan batch{};         ///< the plan with this size: the same global batch if it is set, else one that grows
  std::string flags{};       ///< "--batch_size 64 --accumulation 2 --global_batch_size 256", for the training
  std::vector<BatchSizeTrial> trials{};  ///< in the order in which they were made
};

/// Makes the loader of one trial. `plan` has the batch size of the trial and the share of one rank. `world` is a world
/// of this rank alone, so that no rank waits for one that runs out of memory: use it, not the world of the run.
using TrialLoaderFactory = std::function<std::shared_ptr<BatchSource>(const LoaderPlan& plan, World& world)>;

/// Collective. Trains a few steps with each size on every rank, without sending gradients, until memory runs out on a
/// rank or the data give no larger micro-batch. A step has forward and backward of at most two micro-batches of each
/// loader, and the update. Memory also holds what reducing the gradients needs, and with dist.shard_optimizer only this
/// rank's state. SyncBatchNorm uses the statistics of one rank. The task must not call collectives itself.
/// Afterwards weights, buffers, gradients, random number generators and metrics are those of before; what else the task
/// keeps is not put back. Writes no files. A stop request takes effect after it.
/// Call it before fit(). On a CPU memory is seldom refused: the search then ends at max_size, or the kernel ends the
/// process. Throws: ConfigError (options; no loader), DataError (a loader without samples), Error (one sample does not
/// fit), and any other exception of the task and the data.
BatchSizeSearch find_batch_size(const Plan& plan, World& world, Task& task, const TrialLoaderFactory& make_loader,
                                const BatchSizeSearchOptions& options = {});

}  // namespace lockstep
