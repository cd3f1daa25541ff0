#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/optim/precision.h>
#include <lockstep/trainer/batch_size_search.h>

#include "base/ceil_div.h"
#include "base/option_check.h"
#include "base/ranks_text.h"
#include "metrics/metric_set.h"
#include "parallel/without_peers.h"
#include "plan/batch_plan.h"
#include "trainer/in_precision.h"
#include "trainer/kept_state.h"
#include "trainer/meter.h"
#include "trainer/step_context.h"
#include "world/gather_values.h"
#include "world/out_of_memory.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

void check_search_options(const BatchSizeSearchOptions& options) {
  constexpr std::int64_t kMost = 1'000'000'000;
  OptionCheck("find_batch_size")
      .expect("init", options.init, options.init >= 1, "1 or more")
      .expect("max_size", options.max_size,
              options.max_size >= std::max<std::int64_t>(options.init, 1) && options.max_size <= kMost,
              fmt::format("init or more, at most {}", kMost))
      .expect("steps", options.steps, options.steps >= 2, "2 or more: the first one makes the state of the optimizer")
      .expect_share("margin", options.margin)
      .throw_problems();
}

/// The first two micro-batches of each loader: the second one finds the gradients of the first, and others need no more
/// memory.
StepBatches first_two_of(const StepBatches& batches) {
  StepBatches chosen{.local_samples = batches.local_samples, .global_samples = batches.global_samples};
  std::vector<int> of_loader;
  for (const Batch& batch : batches.micro) {
    of_loader.resize(std::max(of_loader.size(), batch.loader + 1));
    if (of_loader[batch.loader]++ < 2) {
      chosen.micro.push_back(batch);
    }
  }
  return chosen;
}

/// Each micro-batch has all samples of its loader. With some modes of a CombinedLoader an epoch ends before all loaders
/// have ended, but not those that gave less than they were asked for.
bool has_all_samples(const StepBatches& batches, std::int64_t batch_size) {
  const auto is_whole = [&](const LoaderBlock& block) {
    return block.micro_batches == 1 && block.global_samples < batch_size;
  };
  return batches.ends_epoch &&
         (batches.blocks.empty() ? batches.micro.size() == 1 : std::ranges::all_of(batches.blocks, is_whole));
}

/// This rank's part of the step, as if there were no other ranks.
LoaderPlan share_of_one(const LoaderPlan& plan, const BatchPlan& batch, int ranks) {
  LoaderPlan share = plan;
  share.batch = batch;
  share.batch.global_batch_size = largest_share(batch, ranks);
  share.data.steps_per_epoch = {};
  share.data.min_steps_per_epoch = 0;
  share.sampler.drop_last = false;  // of data that are smaller than a step, all are tried
  return share;
}

/// How a trial ended on this rank.
struct Trial {
  std::int64_t largest = 0;  // samples of the largest micro-batch; 0: memory ran out
  bool has_all = false;      // that micro-batch had all samples of the data
};

/// The trials of this rank. None of them waits for another rank.
class Trials {
 public:
  Trials(const Plan& plan, World& world, Task& task, const TrialLoaderFactory& make_loader,
         const BatchSizeSearchOptions& options)
      : plan_(plan), config_(plan.config), world_(world), task_(task), make_loader_(make_loader), options_(options) {
    config_.dist.find_unused_parameters = true;  // the training tells of them, once
    if (world_.device().is_cuda()) {
      take_memory_of_libraries();
    }
  }

  Trial run(const BatchPlan& batch) {
    Trial trial;
    try {
      with_state_kept(task_.module(), world_.device(),
                      [&] { trial = train(share_of_one(plan_.loader, batch, world_.size())); });
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) {
        say_which(batch);
        throw;
      }
    } catch (...) {
      say_which(batch);
      throw;
    }
    if (world_.device().is_cuda()) {  // the next trial has other sizes
      c10::getDeviceAllocator(world_.device().type())->emptyCache();
    }
    return trial;
  }

 private:
  /// cuBLAS takes memory for good when a thread first multiplies, and the backward has a thread of its own. In a trial
  /// it would be in the middle of what the trial has freed, which could not be given back then.
  void take_memory_of_libraries() const {
    const at::AutoGradMode with_gradients(true);
    const at::Tensor matrix = at::ones({8, 8}, at::device(world_.device())).requires_grad_();
    at::mm(matrix, matrix).sum().backward();
  }

  /// The exception itself stays as it is.
  static void say_which(const BatchPlan& batch) {
    log_warning(fmt::format("find_batch_size: batch size {} failed, and not because of memory", batch.batch_size));
  }

  Trial train(const LoaderPlan& loader) {
    const at::Tensor left_free = at::empty({margin_bytes()}, at::device(world_.device()).dtype(at::kByte));
    const std::shared_ptr<BatchSource> data = make_loader_(loader, alone_);
    if (data == nullptr) {
      throw ConfigError("find_batch_size: the function returned no loader", "return a DataLoader for the plan it gets");
    }
    const std::vector<metrics::NamedMetric> metered = task_.metrics();
    metrics::MetricSet metrics(metered, alone_);
    const metrics::FreshStates of_trial(metered);
    WithoutPeers strategy(config_, world_, alone_);
    strategy.prepare(task_.module(), task_.optimizers());
    Meter meter;
    const StepAccess::Context context{.strategy = strategy, .world = alone_, .config = config_, .meter = meter};
    Step step = StepAccess::make(context);
    Trial trial;
    for (ScheduleStep at = kTinyRate; at.step < options_.steps; ++at.step) {
      const StepBatches* batches = data->next();
      if (batches == nullptr) {
        break;
      }
      const StepBatches chosen = first_two_of(*batches);
      strategy.begin_step(at.step, {});
      StepAccess::begin(step, chosen, {.step = at.step}, at, /*loss_factor=*/1);
      task_.optimize(step);
      for (const Batch& batch : chosen.micro) {
        trial.largest = std::max(trial.largest, batch.samples);
      }
      if (at.step == 0) {
        trial.has_all = has_all_samples(*batches, loader.batch.batch_size);
      }
    }
    if (trial.largest == 0) {
      throw DataError("find_batch_size: the loader gave no samples", "give it at least one");
    }
    return trial;
  }

  std::int64_t margin_bytes() const {
    const auto local = static_cast<std::size_t>(world_.local_rank());
    const std::int64_t all = local < plan_.local_devices.size() ? plan_.local_devices[local].memory_bytes : 0;
    return static_cast<std::int64_t>(options_.margin * static_cast<double>(all));
  }

  /// The rate is so small that no weight becomes infinite. The length of the run is arbitrary; schedules need one.
  static constexpr ScheduleStep kTinyRate{.total_steps = 1'000'000, .steps_per_epoch = 1000, .lr_scale = 1e-6};

  const Plan& plan_;
  TrainConfig config_;
  World& world_;
  Task& task_;
  const TrialLoaderFactory& make_loader_;
  const BatchSizeSearchOptions options_;
  World alone_ = World::single(world_.device());
};

/// Where the search is.
struct SearchPlace {
  std::int64_t limit = 0;
  std::int64_t fits = 0;               // the largest that fits; 0: none yet
  std::optional<std::int64_t> full{};  // the smallest that does not
};

std::optional<std::int64_t> next_size(const SearchPlace& at, bool bisect) {
  if (at.fits == at.limit) {
    return std::nullopt;
  }
  if (!at.full) {
    return std::min(2 * at.fits, at.limit);
  }
  if (at.fits == 0) {
    return *at.full > 1 ? std::optional(*at.full / 2) : std::nullopt;
  }
  return bisect && *at.full - at.fits > 1 ? std::optional(at.fits + (*at.full - at.fits) / 2) : std::nullopt;
}

struct Answers {
  std::vector<int> full_ranks{};
  std::int64_t largest = 0;  // samples of a micro-batch
  bool has_all = false;      // as Trial::has_all, on some rank
};

/// Collective. How a trial ended on each rank.
Answers exchange(World& world, const Trial& mine) {
  Answers all{.has_all = world.any(mine.has_all)};
  const std::vector<std::int64_t> largest = gather_value(world, mine.largest);
  for (std::size_t rank = 0; rank < largest.size(); ++rank) {
    all.largest = std::max(all.largest, largest[rank]);
    if (largest[rank] == 0) {
      all.full_ranks.push_back(static_cast<int>(rank));
    }
  }
  return all;
}

}  // namespace

BatchSizeSearch find_batch_size(const Plan& plan, World& world, Task& task, const TrialLoaderFactory& make_loader,
                                const BatchSizeSearchOptions& options) {
  check_search_options(options);
  if (!make_loader) {
    throw ConfigError("find_batch_size: the function that makes a loader is missing");
  }
  const c10::DeviceGuard on_device(world.device());
  const NumericsScope numerics(plan.config);
  const at::AutoGradMode gradients(true);  // the program may call it under a NoGradGuard
  const PhaseScope phase(WorldAccess::progress(world), Phase::prepare);
  place_module(task.module(), world.device(), plan.config);  // as a fit does
  Trials trials(plan, world, task, make_loader, options);
  const BatchPlan& given = plan.loader.batch;
  BatchSizeSearch found;
  SearchPlace place{.limit = options.max_size};
  if (given.global_is_given) {  // a larger micro-batch has no more samples
    place.limit = std::min(place.limit, largest_share(given, world.size()));
  }
  std::optional<std::int64_t> size = std::min(options.init, place.limit);
  while (size) {
    const Answers answers = exchange(world, trials.run(with_batch_size(given, *size, world.size())));
    if (!answers.full_ranks.empty()) {
      place.full = *size;
      log_info(fmt::format("batch size {}: {} ran out of memory", *size, ranks_text(answers.full_ranks)));
    } else {
      place.fits = std::max(place.fits, std::min(*size, answers.largest));
      log_info(fmt::format("batch size {} fits", place.fits));
      if (answers.has_all && !given.global_is_given) {  // a rank of the training has its share of them
        place.fits = std::min(place.fits, ceil_div(answers.largest, world.size()));
        place.limit = place.fits;
      } else if (answers.largest < *size) {  // the loader gives no larger micro-batch
        place.limit = place.fits;
      }
    }
    found.trials.push_back({.batch_size = *size, .full_ranks = answers.full_ranks});
    size = next_size(place, options.bisect);
  }
  if (place.fits == 0) {
    throw Error(fmt::format("find_batch_size: {} ran out of memory with a single sample",
                            ranks_text(found.trials.back().full_ranks)),
                "use a smaller model, shorter inputs, activation recomputation, or a smaller margin");
  }
  found.largest = place.fits;
  found.batch = with_batch_size(given, found.largest, world.size());
  found.flags = flags_of(found.batch);
  return found;
}

}  // namespace lockstep
