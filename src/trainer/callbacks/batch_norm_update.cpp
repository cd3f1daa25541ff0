#include "trainer/callbacks/batch_norm_update.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>

#include <lockstep/base/error.h>
#include <lockstep/parallel/sync_batch_norm.h>
#include <lockstep/world/world.h>

#include "data/epoch_begin.h"
#include "metrics/metric_set.h"
#include "trainer/evaluation_scope.h"
#include "trainer/in_precision.h"

namespace lockstep {
namespace {

/// The running statistics of a batch norm layer. While it exists they are means over all batches, with equal weights.
class CumulativeStatistics {
 public:
  template <class Norm>
  explicit CumulativeStatistics(Norm& norm)
      : options_(&norm.options),
        momentum_(norm.options.momentum()),
        mean_(norm.running_mean),
        variance_(norm.running_var),
        batches_(norm.num_batches_tracked) {
    norm.reset_running_stats();
    options_->momentum(std::nullopt);
  }
  ~CumulativeStatistics() {
    if (options_ != nullptr) {
      options_->momentum(momentum_);
    }
  }
  CumulativeStatistics(CumulativeStatistics&& other) noexcept
      : options_(std::exchange(other.options_, nullptr)),
        momentum_(other.momentum_),
        mean_(std::move(other.mean_)),
        variance_(std::move(other.variance_)),
        batches_(std::move(other.batches_)) {}
  CumulativeStatistics& operator=(CumulativeStatistics&&) = delete;

  /// Shape: [2 C + 1], float64.
  at::Tensor sums() const {
    const at::Tensor count = batches_.to(at::kDouble).view({1});
    return at::cat({mean_.to(at::kDouble) * count, variance_.to(at::kDouble) * count, count});
  }
  void set(const at::Tensor& sums) {
    const std::int64_t channels = mean_.size(0);
    const at::Tensor count = sums.select(0, 2 * channels);
    const at::Tensor was_called = count > 0;
    mean_.copy_(at::where(was_called, sums.narrow(0, 0, channels) / count, mean_.to(at::kDouble)));
    variance_.copy_(at::where(was_called, sums.narrow(0, channels, channels) / count, variance_.to(at::kDouble)));
    batches_.copy_(count);
  }

 private:
  torch::nn::BatchNormOptions* options_;
  std::optional<double> momentum_;
  at::Tensor mean_;
  at::Tensor variance_;
  at::Tensor batches_;
};

struct Layers {
  std::vector<CumulativeStatistics> plain{};
  std::vector<CumulativeStatistics> synchronised{};  // equal on all ranks
};

/// nullptr: it is another layer, or keeps its statistics.
template <class Norm>
Norm* as_updated(torch::nn::Module& part) {
  auto* norm = part.as<Norm>();
  return norm != nullptr && norm->is_training() && norm->options.track_running_stats() ? norm : nullptr;
}

/// Calls `f` with each layer that is updated, once also if it has several names.
template <class F>
void for_each_updated(torch::nn::Module& module, const F& f) {
  const auto call = [&f](auto* norm) {
    if (norm != nullptr) {
      f(*norm);
    }
  };
  const auto look_at = [&](torch::nn::Module& part) {
    call(as_updated<torch::nn::BatchNorm1dImpl>(part));
    call(as_updated<torch::nn::BatchNorm2dImpl>(part));
    call(as_updated<torch::nn::BatchNorm3dImpl>(part));
    call(as_updated<SyncBatchNormImpl>(part));
  };
  look_at(module);
  std::unordered_set<const torch::nn::Module*> seen;
  for (const auto& part : module.modules(/*include_self=*/false)) {  // including it would require a shared_ptr
    if (seen.insert(part.get()).second) {
      look_at(*part);
    }
  }
}

Layers layers_of(torch::nn::Module& module) {
  Layers layers;
  for_each_updated(module, [&]<class Norm>(Norm& norm) {
    (std::is_same_v<Norm, SyncBatchNormImpl> ? layers.synchronised : layers.plain).emplace_back(norm);
  });
  return layers;
}

void combine_over_ranks(std::vector<CumulativeStatistics>& layers, World& world) {
  std::vector<at::Tensor> all;
  std::vector<std::int64_t> sizes;
  for (const CumulativeStatistics& layer : layers) {
    all.push_back(layer.sums());
    sizes.push_back(all.back().size(0));
  }
  if (all.empty()) {
    return;
  }
  at::Tensor sums = at::cat(all);
  world.all_reduce(sums, Reduce::sum);
  const std::vector<at::Tensor> parts = sums.split_with_sizes(sizes);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i].set(parts[i]);
  }
}

/// nullptr: this rank has none in the step.
const Batch* first_with_samples(const StepBatches* step) {
  if (step == nullptr) {
    return nullptr;
  }
  const auto found = std::ranges::find_if(step->micro, [](const Batch& batch) { return batch.samples > 0; });
  return found == step->micro.end() ? nullptr : &*found;
}

StepOutput training_step(const StageContext& context, const Batch& batch) {
  return in_precision(context.plan.config, context.world.device().type(), batch,
                      [&](const Batch& b) { return context.task->training_step(b); });
}

}  // namespace

void check_batch_norm_update(const StageContext& context) {
  bool has_layers = false;
  for_each_updated(context.module, [&](const auto&) { has_layers = true; });
  if (!has_layers) {
    return;
  }
  const at::NoGradGuard no_grad;
  const EvaluationScope without_traces(context.module, context.world.device());
  const std::vector<metrics::NamedMetric> metered = context.task->metrics();
  const metrics::FreshStates of_update(metered);
  const LoaderPosition before = context.train->position();
  if (const Batch* batch = first_with_samples(context.train->next()); batch != nullptr) {
    try {
      training_step(context, *batch);
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("WeightAverage: batch_norm_steps needs training_step(): {}", error.what()),
                        "override it beside optimize(), with the same forward; or use batch_norm_steps 0");
    }
  }
  context.train->seek(before);
}

void update_batch_norm(const StageContext& context, std::int64_t steps) {
  const at::NoGradGuard no_grad;
  Layers layers = layers_of(context.module);
  if (layers.plain.empty() && layers.synchronised.empty()) {
    return;
  }
  const std::vector<metrics::NamedMetric> metered = context.task->metrics();
  const metrics::FreshStates of_update(metered);
  const LoaderPosition before = seek_epoch_begin(*context.train);
  for (std::int64_t done = 0; done < steps; ++done) {
    const StepBatches* step = context.train->next();
    if (step == nullptr) {
      break;
    }
    for (const Batch& batch : step->micro) {
      if (batch.samples > 0) {
        training_step(context, batch);
      }
      context.strategy->end_forward(batch.samples > 0);
    }
    if (step->ends_epoch) {
      break;
    }
  }
  context.train->seek(before);
  combine_over_ranks(layers.plain, context.world);
}

}  // namespace lockstep
