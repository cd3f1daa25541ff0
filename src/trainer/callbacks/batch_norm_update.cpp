#include "trainer/callbacks/batch_norm_update.h"

#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>

#include <lockstep/parallel/sync_batch_norm.h>
#include <lockstep/world/world.h>

#include "metrics/metric_set.h"
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

template <class Norm>
void add_layer(torch::nn::Module& part, std::vector<CumulativeStatistics>& layers) {
  if (auto* norm = part.as<Norm>(); norm != nullptr && norm->is_training() && norm->options.track_running_stats()) {
    layers.emplace_back(*norm);
  }
}

Layers layers_of(torch::nn::Module& module) {
  Layers layers;
  const auto add = [&](torch::nn::Module& part) {
    add_layer<torch::nn::BatchNorm1dImpl>(part, layers.plain);
    add_layer<torch::nn::BatchNorm2dImpl>(part, layers.plain);
    add_layer<torch::nn::BatchNorm3dImpl>(part, layers.plain);
    add_layer<SyncBatchNormImpl>(part, layers.synchronised);
  };
  add(module);
  for (const auto& part : module.modules(/*include_self=*/false)) {  // including it would require a shared_ptr
    add(*part);
  }
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

}  // namespace

void update_batch_norm(const StageContext& context, std::int64_t steps) {
  const at::NoGradGuard no_grad;
  Layers layers = layers_of(context.module);
  if (layers.plain.empty() && layers.synchronised.empty()) {
    return;
  }
  const std::vector<metrics::NamedMetric> metered = context.task->metrics();
  const metrics::StatesKept of_training(metered);
  const LoaderPosition before = context.train->position();
  context.train->seek({.epoch = before.epoch, .global_batch = before.global_batch});
  for (std::int64_t done = 0; done < steps; ++done) {
    const StepBatches* step = context.train->next();
    if (step == nullptr) {
      break;
    }
    for (const Batch& batch : step->micro) {
      if (batch.samples > 0) {
        in_precision(context.plan.config, context.world.device().type(), batch,
                     [&](const Batch& b) { return context.task->training_step(b); });
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
