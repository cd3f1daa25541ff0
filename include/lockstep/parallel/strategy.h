// lockstep/parallel/strategy.h
//
// All that a training loop needs from data parallelism, for hand-written loops as for the Trainer.
//
// Per step: strategy.begin_step(); then for an optimizer, `auto& optimizer = strategy.optimizer()`: zero_grad; for each
// micro-batch begin_forward, your forward, backward; then finish, step.
// Gradients are means: with weights w_i the result is (1 / ranks) * sum over ranks and micro-batches of w_i * dloss_i.
// A weight of samples x ranks / global samples makes it the mean over the global batch, whatever the split.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include <lockstep/optim/optimizers.h>
#include <lockstep/plan/plan.h>
#include <lockstep/world/named_tensors.h>

namespace [[gnu::visibility("default")]] lockstep {

class World;

/// Requests of a rank that travel with the gradients, so that all ranks learn them at the same step without a
/// collective of their own. Each is sent once, with the next reduction.
struct StepRequests {
  bool stop = false;
  bool save = false;
  bool save_ended = false;  ///< a save in the background has ended
  bool operator==(const StepRequests&) const = default;
  StepRequests operator|(const StepRequests& other) const noexcept {
    return {stop || other.stop, save || other.save, save_ended || other.save_ended};
  }
};

/// One optimizer: the parameters it updates, their gradients, and the reduction of these over ranks. Every optimizer
/// has its own reduction: a GAN's generator step neither reduces the discriminator's gradients nor waits for them.
class StrategyOptimizer {
 public:
  virtual ~StrategyOptimizer();

  /// Drops the gradients. Do not call Optimizer::zero_grad: it throws on gradients that are views of buckets.
  virtual void zero_grad() = 0;

  /// Before a forward. `reduce`: this micro-batch's backward ends the accumulation and reduces the gradients.
  virtual void begin_forward(bool reduce) = 0;

  /// Runs backward from `loss` (0-dim) with `weight` as its gradient. Modules may return anything: outputs that do not
  /// reach the loss count as unused.
  virtual void backward(const at::Tensor& loss, const at::Tensor& weight) = 0;
  void backward(const at::Tensor& loss, double weight = 1);

  /// This rank has no samples in a micro-batch that others have: takes part in the reduction with zeros.
  virtual void backward_nothing() = 0;

  /// What this rank's mean was taken over (0-dim, on the device), when it is not known without communication (tokens).
  /// Summed up until finish(); afterwards mean_count() is the mean over ranks: dividing the gradients by it makes them
  /// exact.
  virtual void add_count(const at::Tensor& count) = 0;
  virtual at::Tensor mean_count() = 0;

  /// After the last backward: gradients are the mean, the same on every rank. Throws: Error naming the parameters that
  /// got no gradient, before any of them is updated.
  virtual void finish() = 0;

  virtual at::Tensor grad_norm() = 0;                      ///< 0-dim, on the device
  virtual void scale_grads(const at::Tensor& factor) = 0;  ///< 0-dim; clipping, unscaling, token weights
  virtual void set_lr_factor(double factor) = 0;           ///< learning rates = base x factor
  virtual double lr() const = 0;                           ///< of the first group
  virtual void step() = 0;                                 ///< updates the parameters
  virtual torch::optim::Optimizer& torch_optimizer() = 0;

 private:
  at::Tensor weight_{};  // the last weight as a tensor: it seldom changes
  double weight_value_ = 0;
};

class Strategy {
 public:
  /// Leaves an ordinary module behind: no hooks; parameters and gradients own their memory.
  virtual ~Strategy();

  /// Collective. Compares parameter names, shapes, dtypes and order over ranks (CommError, exit 78, names the first
  /// difference), sends rank 0's parameters and buffers to all ranks, builds the optimizers. Call it after
  /// module.to(device). Parameters without requires_grad are frozen: no optimizer changes them. Throws: ConfigError (an
  /// optimizer that cannot be built, or nothing that requires gradients).
  virtual void prepare(torch::nn::Module& module, std::span<const OptimizerSpec> optimizers) = 0;

  /// Collective. After freezing or unfreezing parameters, between two steps: from now on the optimizers update the
  /// parameters that require gradients now. State, options and learning rates are kept. The state of frozen parameters
  /// is kept and saved as well. Throws: CommError (exit 78) naming the rank and the parameter that differs.
  virtual void prepare_again() = 0;

  /// Begins a step: rank 0's buffers go to all ranks before its first forward (dist.broadcast_buffers), and this rank's
  /// requests go with the next reduction, in this step or a later one.
  virtual void begin_step(StepRequests mine = {}) = 0;

  /// At the end of a step: the requests of all ranks, the same on every rank, each request in one step only. CPU: those
  /// of this step's reductions. GPU: those of the step before, so that nothing waits.
  virtual StepRequests agreed() = 0;

  virtual std::size_t optimizer_count() const noexcept = 0;
  /// `index`: in the order given to prepare().
  virtual StrategyOptimizer& optimizer(std::size_t index) = 0;
  StrategyOptimizer& optimizer() { return optimizer(0); }

  /// All optimizers' state by parameter name, and its inverse.
  virtual NamedTensors optimizer_state() const = 0;
  virtual void load_optimizer_state(const NamedTensors& state) = 0;
};

std::unique_ptr<Strategy> make_strategy(const Plan& plan, World& world);

}  // namespace lockstep
