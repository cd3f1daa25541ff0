// A small regression with known results.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/session.h>
#include <lockstep/trainer/trainer.h>

#include "base/mapped.h"

namespace lockstep {

inline std::shared_ptr<Dataset> tiny_data(std::int64_t size) {
  const auto x = at::sin(at::arange(size * 4, at::kFloat) * 0.37).view({size, 4});
  return tensor_dataset(x, x.sum(1, true));
}

class TinyTask : public Task {
 public:
  explicit TinyTask(OptimizerSpec optimizer = sgd({.lr = 0.1})) : optimizer_(std::move(optimizer)) {
    at::NoGradGuard no_grad;
    for (auto& parameter : net_->parameters()) {
      parameter.copy_(at::cos(at::arange(parameter.numel(), at::kFloat)).view(parameter.sizes()) * 0.3);
    }
  }
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override { return {optimizer_}; }
  StepOutput training_step(const Batch& batch) override { return at::mse_loss(net_(batch.input), batch.target); }

 protected:
  torch::nn::Linear net_{4, 1};
  OptimizerSpec optimizer_;
};

/// Copies of its parameters.
inline std::vector<at::Tensor> weights_of(Task& task) {
  return mapped(task.module().parameters(), [](const at::Tensor& weight) { return weight.detach().clone(); });
}

/// What Task::optimize does with one optimizer, with `loss` in place of training_step().
template <class Loss>
void update_with(std::size_t number, Step& step, const Loss& loss) {
  OptimizerStep& optimizer = step.optimizer(number);
  optimizer.zero_grad();
  for (const Batch& batch : step.batches()) {
    const StepOutput out = optimizer.forward(batch, [&](const Batch& b) -> StepOutput { return loss(b); });
    optimizer.backward(out);
    step.add(out);
  }
  optimizer.update();
}

/// A configuration that writes no files.
inline TrainConfig in_memory(TrainConfig config) {
  config.compute_setup = ComputeSetup::cpu;
  config.checkpoint.enabled = false;
  config.report.jsonl = false;
  config.report.csv = false;
  return config;
}

/// The plan of so many ranks on a machine with 4 cores.
inline Plan plan_for(int ranks, TrainConfig config) {
  config.nprocs = ranks;
  return resolve(config, {.cores = 4}, std::nullopt);
}

}  // namespace lockstep
