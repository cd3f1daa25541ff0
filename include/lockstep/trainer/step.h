// lockstep/trainer/step.h
//
// The pieces of one training step. Task::optimize is written with them; a task that overrides it optimizes by hand.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/data/data_loader.h>
#include <lockstep/parallel/strategy.h>
#include <lockstep/trainer/train_state.h>

namespace [[gnu::visibility("default")]] lockstep {

/// What a forward gives back. A loss alone converts to it: `return torch::cross_entropy_loss(...)`.
struct StepOutput {
  at::Tensor loss{};  ///< 0-dim, the mean over `count`; undefined: the batch trains nothing
  /// What the mean was taken over: 0-dim on the device; undefined: batch.samples. Tokens for a language model with
  /// padding: any split of a global batch over ranks and micro-batches then gives the same gradient. It may be 0: the
  /// loss may then be NaN, but its backward with an incoming gradient of 0 has to give zeros, as cross_entropy with
  /// ignore_index does; in a division of your own use count.clamp_min(1). An optimizer's
  /// micro-batches all have one, or none has.
  at::Tensor count{};
  NamedTensors metrics{};  ///< 0-dim means over count; summed on the device, reduced over ranks at a report only
  StepOutput() = default;
  StepOutput(at::Tensor loss_) : loss(std::move(loss_)) {}  // NOLINT(google-explicit-constructor)
  StepOutput(at::Tensor loss_, NamedTensors metrics_) : loss(std::move(loss_)), metrics(std::move(metrics_)) {}
};

class World;

/// Sums of losses and metrics weighted by count, on the device until they are asked for.
class Meter {
 public:
  void add(const StepOutput& output, std::int64_t samples);
  /// Collective. Means over all ranks since the last take(), "loss" first; {} when nothing was added anywhere. Waits
  /// for the device.
  std::vector<std::pair<std::string, double>> means(World& world);
  /// Collective. The same, and begins anew.
  std::vector<std::pair<std::string, double>> take(World& world);

 private:
  void agree_on_names(World& world);

  std::vector<std::string> names_{};  // "loss", then the task's metrics; agreed over ranks at the first take()
  std::vector<at::Tensor> sums_{};    // beside names_, weighted by count
  double samples_ = 0;                // weight that is known on the host
  at::Tensor counts_{};               // weight that only the device knows
  bool agreed_ = false;
};

/// A rank's outputs of several micro-batches; means are weighted by count. On the device, nothing waits.
class MicroBatches {
 public:
  using Value = std::function<at::Tensor(const StepOutput&)>;

  /// An output without a loss is left out.
  void add(const StepOutput& output, std::int64_t samples);
  bool empty() const noexcept { return parts_.empty(); }
  std::int64_t samples() const;
  /// Of this rank, 0 where nothing counted. Not for empty().
  at::Tensor mean(const Value& value) const;
  /// Means of loss and metrics, and the sum of the counts; without a loss when empty().
  StepOutput output() const;
  /// Collective. The mean loss over all ranks: 0-dim float64.
  at::Tensor mean_over_ranks(World& world) const;

 private:
  struct Sum {
    at::Tensor values{};
    at::Tensor count{};  // undefined: only samples were counted
    double samples = 0;
  };
  Sum sum(const Value& value) const;

  std::vector<std::pair<StepOutput, std::int64_t>> parts_{};
};

class Step;

/// One optimizer's part of a step.
class OptimizerStep {
 public:
  OptimizerStep(Step& step, StrategyOptimizer& optimizer) : step_(step), optimizer_(optimizer) {}

  /// Drops the gradients.
  void zero_grad() { optimizer_.zero_grad(); }

  /// Runs `f` on the batch in the configured precision. The gradients are reduced over ranks in the backward of the
  /// step's last batch only. A batch without samples, which exists because other ranks have some, is not shown to `f`;
  /// its output has no loss.
  StepOutput forward(const Batch& batch, const std::function<StepOutput(const Batch&)>& f);

  /// Backward of what forward() returned last, weighted by its share of the global batch.
  void backward(const StepOutput& output);

  /// Gradients become the mean over the global batch, are clipped, and the optimizer updates with the scheduled rate.
  /// When all counts of the step are 0 it updates with gradients of zero: momentum and weight decay still act.
  void update();

  /// For optimizers with a closure (LBFGS): it does zero_grad, then forward and backward for every micro-batch, and
  /// returns an output, which nobody reads. It is called with gradients enabled, and the optimizer sees the mean of the
  /// losses given to backward() over micro-batches and ranks: with their own values ranks would evaluate a different
  /// number of times and wait for each other forever. Returns the first evaluation's means over this rank's
  /// micro-batches, for Step::add().
  StepOutput minimize(const std::function<StepOutput()>& closure);

 private:
  void finish();
  void check_counts(const StepOutput& output);

  Step& step_;
  StrategyOptimizer& optimizer_;
  std::optional<bool> counted_{};       // its micro-batches have counts
  MicroBatches* evaluation_ = nullptr;  // the closure's, while minimize() runs it
};

class Step {
 public:
  /// Used by the Trainer, and by tests.
  struct Context {
    Strategy& strategy;
    World& world;
    const TrainConfig& config;
    const StepBatches& batches;
    Meter& meter;
    std::int64_t number = 0;  ///< of the step, from 0
    double lr_factor = 1;     ///< the schedule's
  };
  explicit Step(const Context& context);
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  std::span<const Batch> batches() const noexcept { return context_.batches.micro; }
  bool is_last(const Batch& batch) const noexcept { return &batch == &context_.batches.micro.back(); }
  std::int64_t number() const noexcept { return context_.number; }

  std::size_t optimizer_count() const noexcept { return optimizers_.size(); }
  /// `index`: in the order of Task::optimizers().
  OptimizerStep& optimizer(std::size_t index = 0) { return optimizers_.at(index); }

  /// Counts the output's loss and metrics in the reports.
  void add(const StepOutput& output);

  /// A backward of this step got samples and a loss, or samples and none.
  bool backward_with_loss() const noexcept { return with_loss_; }
  bool backward_without_loss() const noexcept { return without_loss_; }

  /// This rank's mean loss of what was added, and the last norm and rate.
  StepResult result() const;

 private:
  friend class OptimizerStep;

  double share(std::int64_t samples) const noexcept;

  const Context context_;
  std::vector<OptimizerStep> optimizers_{};
  MicroBatches added_{};
  std::int64_t last_samples_ = 0;  // of the batch that a forward saw last
  at::Tensor grad_norm_{};
  bool with_loss_ = false;
  bool without_loss_ = false;
};

}  // namespace lockstep
