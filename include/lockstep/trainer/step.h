// lockstep/trainer/step.h
//
// The parts of one training step. Task::optimize uses them, and so does a task that overrides it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <lockstep/data/data_loader.h>
#include <lockstep/parallel/strategy.h>
#include <lockstep/trainer/step_output.h>
#include <lockstep/trainer/train_state.h>

namespace [[gnu::visibility("default")]] lockstep {

class Step;
class Task;

/// One optimizer's part of a step.
class OptimizerStep {
 public:
  OptimizerStep(const OptimizerStep&) = delete;
  OptimizerStep& operator=(const OptimizerStep&) = delete;

  /// Drops the gradients. Another function that clears them does not replace it.
  void zero_grad();

  /// Runs `f` on the batch, or on a copy of it, in the configured precision. Call it for every batch of the step, also
  /// for one without samples, which other ranks may have: `f` is not called for it, and its output has no loss. The
  /// gradients are reduced over ranks in the backward of the last one: the n-th forward since zero_grad(), for n
  /// batches.
  [[nodiscard]] StepOutput forward(const Batch& batch, const std::function<StepOutput(const Batch&)>& f);

  /// Backward of the last result of forward(), weighted by its share of the global batch.
  void backward(const StepOutput& output);

  /// Computes the mean of the gradients over the global batch, clips it, and updates the parameters with the scheduled
  /// learning rate. With fp16_mixed, gradients that are not finite change no parameter. If all counts of the step are
  /// 0, the gradients are zero, but momentum and weight decay still apply. Throws: Error if a batch of the step had no
  /// forward() or the last one no backward(); if the backward of another optimizer changed the gradients after they
  /// were reduced; if there was no zero_grad() since the last update.
  void update();

  /// For optimizers with a closure (LBFGS). The closure calls zero_grad, then forward and backward for every
  /// micro-batch, and returns an output that is ignored. It runs with gradients enabled. The optimizer gets the mean of
  /// the losses over micro-batches and ranks: with different values, the ranks would call the closure a different
  /// number of times and deadlock. Returns the means of the first evaluation over this rank's micro-batches, for
  /// Step::add().
  [[nodiscard]] StepOutput minimize(const std::function<StepOutput()>& closure);

 private:
  friend class Step;
  friend class Task;
  struct Outputs;

  OptimizerStep(Step& step, std::size_t index, StrategyOptimizer& optimizer)
      : step_(step), index_(index), optimizer_(optimizer) {}

  /// forward() and backward() in one, which can be a CUDA graph.
  StepOutput pass(const Batch& batch, const std::function<StepOutput(const Batch&)>& f);
  void begin_forward(const Batch& batch);
  StepOutput evaluate(const Batch& batch, const std::function<StepOutput(const Batch&)>& f);
  void note(const StepOutput& output);
  void run_backward(const StepOutput& output);
  void weighted_backward(const StepOutput& output);
  /// Its gradients are reduced, and the update has not used them yet.
  bool waits_for_update() const noexcept { return has_last_backward_ && !is_used_; }
  void finish();
  void check_that_it_is_complete() const;
  void check_that_gradients_are_its_own() const;
  void check_counts(const StepOutput& output);
  at::Tensor count_as_weight(const StepOutput& output) const;
  at::Tensor mean_loss();

  Step& step_;
  std::size_t index_;
  StrategyOptimizer& optimizer_;
  std::optional<bool> counted_{};            // the micro-batches of this step have counts
  std::size_t forwards_ = 0;                 // since zero_grad()
  bool has_last_backward_ = false;           // since zero_grad()
  bool is_used_ = false;                     // an update has used the gradients; until zero_grad()
  std::optional<std::size_t> changed_by_{};  // the optimizer whose backward changed the reduced gradients
  at::Tensor grad_norm_{};                   // of its last update in this step; undefined: not computed
  Outputs* evaluation_ = nullptr;            // outputs of the closure while minimize() runs it
};

/// One training step, as Task::optimize sees it: its micro-batches and its optimizers.
class Step {
 public:
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  std::span<const Batch> batches() const noexcept { return now_.batches->micro; }
  std::int64_t number() const noexcept { return now_.before.step; }
  /// What was completed before this step. In the first epoch `epoch` is 0.
  const TrainState& state() const noexcept { return now_.before; }

  std::size_t optimizer_count() const noexcept { return optimizers_.size(); }
  /// `index`: position in Task::optimizers().
  OptimizerStep& optimizer(std::size_t index = 0) { return *optimizers_.at(index); }

  /// Adds the loss and the metrics of an output to the reports; steps may have different metrics. At the end of the
  /// step: if its update is left out because its loss is not finite (optim.non_finite skip), they do not count.
  void add(const StepOutput& output);

 private:
  friend class OptimizerStep;
  friend struct StepAccess;  // src/trainer/step_context.h: for the loop
  struct Context;
  struct Outputs;

  explicit Step(const Context& context);
  /// A step begins, with these batches, which must live until the next one begins. `before`: the progress without it.
  /// `loss_factor`: of the loss of which gradients are computed (optim.loss_scaling).
  void begin(const StepBatches& batches, const TrainState& before, const ScheduleStep& at, double loss_factor);
  /// After optimize().
  void end();
  /// Mean loss of the added outputs of this rank, gradient norms and learning rate.
  StepResult result() const;

  std::int64_t samples_of(const StepOutput& output) const noexcept {
    return output.samples.value_or(now_.last_samples);
  }
  double weight(std::int64_t samples) const noexcept;
  double count_unit() const noexcept;
  /// Of the inputs of this rank; undefined: there are none.
  at::Tensor mean_square_of_inputs() const;
  /// Losses decide whether an update is left out.
  bool looks_at_losses() const noexcept;

  // Of the present step.
  struct Now {
    const StepBatches* batches = nullptr;
    TrainState before{};
    ScheduleStep at{};
    double loss_factor = 1;
    std::int64_t last_samples = 0;  // of the batch of the last forward
    at::Tensor inputs{};            // as StepResult::inputs
    at::Tensor skipped{};           // 1: an update was left out; undefined: none can be
    at::Tensor spike{};             // likewise
    at::Tensor uncounted{};         // likewise: 1: its loss is not counted
    bool with_loss = false;
    bool without_loss = false;
  };

  const Context& context_;
  std::vector<std::unique_ptr<OptimizerStep>> optimizers_{};
  std::unique_ptr<Outputs> added_;
  Now now_{};
};

}  // namespace lockstep
