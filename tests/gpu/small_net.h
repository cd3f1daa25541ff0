// A small network for tests in one process.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/nn/recompute.h>
#include <lockstep/session.h>
#include <lockstep/trainer/trainer.h>

namespace lockstep {

/// Small images of ten classes.
inline std::shared_ptr<Dataset> small_images(std::int64_t size) {
  const auto pixels = at::sin(at::arange(size * 3 * 8 * 8, at::kFloat) * 0.37).view({size, 3, 8, 8});
  return tensor_dataset(pixels, at::arange(size).remainder(10));
}

/// The usual layers. Its operations have deterministic kernels.
struct SmallNetImpl : torch::nn::Module {
  explicit SmallNetImpl(double dropout) : drop(register_module("drop", torch::nn::Dropout(dropout))) {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 16, 3).stride(2).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(16));
    wide = register_module("wide", torch::nn::Linear(16 * 4 * 4, 32));
    head = register_module("head", torch::nn::Linear(32, 10));
    const at::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(at::cos(at::arange(parameter.numel(), at::kFloat) * 1.3).view(parameter.sizes()) * 0.1);
    }
    norm->weight.fill_(1);
  }
  at::Tensor forward(const at::Tensor& pixels) {
    const at::Tensor features = at::relu(norm(conv(pixels))).flatten(1);
    return head(drop(at::relu(wide(features))));
  }
  torch::nn::Dropout drop;
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear wide{nullptr}, head{nullptr};
};
TORCH_MODULE(SmallNet);

class SmallTask : public Task {
 public:
  explicit SmallTask(double dropout = 0, OptimizerSpec optimizer = sgd({.lr = 0.01, .momentum = 0.9}))
      : net_(dropout), optimizer_(std::move(optimizer)) {}
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override { return {optimizer_}; }
  StepOutput training_step(const Batch& batch) override {
    return at::cross_entropy_loss(net_->forward(batch.input), batch.target);
  }

 protected:
  SmallNet net_;
  OptimizerSpec optimizer_;
};

/// A loss with a metric and a count that only the device knows.
class CountingTask final : public SmallTask {
 public:
  using SmallTask::SmallTask;
  StepOutput training_step(const Batch& batch) override {
    const at::Tensor scores = net_->forward(batch.input);
    StepOutput output(at::cross_entropy_loss(scores, batch.target));
    output.count = (batch.target >= 0).sum();
    output.metrics.emplace_back("correct", (scores.argmax(1) == batch.target).to(at::kFloat).mean());
    return output;
  }
};

/// The backward of its layers runs the forward again, with the random numbers of the first.
class RecomputingTask final : public SmallTask {
 public:
  using SmallTask::SmallTask;
  StepOutput training_step(const Batch& batch) override {
    const at::Tensor scores = recompute([this](const at::Tensor& x) { return net_->forward(x); }, batch.input);
    return at::cross_entropy_loss(scores, batch.target);
  }
};

}  // namespace lockstep
