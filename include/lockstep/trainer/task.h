// lockstep/trainer/task.h
//
// Model, loss and optimizers of a training, written by the user.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <lockstep/metrics/metric.h>
#include <lockstep/trainer/step.h>

namespace [[gnu::visibility("default")]] lockstep {

/// What a program trains: the model, its optimizers, and the loss of a batch. Derive from it, or use make_task().
class Task {
 public:
  virtual ~Task() = default;
  virtual torch::nn::Module& module() = 0;
  /// One optimizer; several only if optimize() is overridden. Called once per fit, after the module was moved to its
  /// device.
  virtual std::vector<OptimizerSpec> optimizers() = 0;
  /// Forward and loss of one micro-batch, in training mode. `batch` has at least one sample and is on the device: a
  /// rank without samples in a micro-batch, as at the end of an epoch, does not call it, nor the steps below. Others
  /// then wait for it in a collective until dist.timeout_s; see "A loss over all ranks" in docs/recipes.md. Not needed
  /// if the task overrides optimize() and, if there is a validation, validation_step().
  virtual StepOutput training_step(const Batch& batch);
  /// Forward and loss in evaluation mode, without gradients.
  virtual StepOutput validation_step(const Batch& batch) { return training_step(batch); }
  /// The same for Trainer::test.
  virtual StepOutput test_step(const Batch& batch) { return validation_step(batch); }
  /// The results for the samples of a batch, for Trainer::predict: tensors of shape [samples, ...]. In evaluation mode,
  /// without gradients.
  virtual NamedTensors predict_step(const Batch& batch);
  /// Metrics that the steps above update; docs/metrics.md. The Trainer reports their values over all ranks since the
  /// last report, or of a whole validation or test, and resets them. Called once per fit, validation and test.
  virtual std::vector<metrics::NamedMetric> metrics() { return {}; }
  /// One training step. The default handles one optimizer; override it for several optimizers or closures.
  virtual void optimize(Step& step);
};

/// Makes a task without a class of your own. `net` is a module holder (TORCH_MODULE) or a shared_ptr to a module whose
/// forward takes batch.input. `loss(output, target)` returns the mean loss or a StepOutput. Its prediction "output" is
/// what the forward returns, if that is a tensor.
template <class Net, class Loss>
std::unique_ptr<Task> make_task(Net net, Loss loss, OptimizerSpec optimizer) {
  constexpr bool kIsHandle = requires { net.operator->(); };
  static_assert(kIsHandle, "make_task: pass a module holder (TORCH_MODULE) or a std::shared_ptr to the module");
  if constexpr (kIsHandle) {
    class Supervised final : public Task {
     public:
      Supervised(Net net, Loss loss, OptimizerSpec optimizer)
          : net_(std::move(net)), loss_(std::move(loss)), optimizer_(std::move(optimizer)) {}
      torch::nn::Module& module() override { return *net_; }
      std::vector<OptimizerSpec> optimizers() override { return {optimizer_}; }
      StepOutput training_step(const Batch& batch) override { return loss_(net_->forward(batch.input), batch.target); }
      NamedTensors predict_step(const Batch& batch) override {
        if constexpr (std::is_convertible_v<decltype(net_->forward(batch.input)), at::Tensor>) {
          return {{"output", net_->forward(batch.input)}};
        } else {
          return Task::predict_step(batch);
        }
      }

     private:
      Net net_;
      Loss loss_;
      OptimizerSpec optimizer_;
    };
    return std::make_unique<Supervised>(std::move(net), std::move(loss), std::move(optimizer));
  } else {
    return nullptr;
  }
}

}  // namespace lockstep
