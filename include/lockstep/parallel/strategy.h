// lockstep/parallel/strategy.h
//
// All that a training loop needs from data parallelism, for hand-written loops as for the Trainer.
//
// Per step: begin_step, zero_grad; for each micro-batch begin_forward, your forward, backward; then finish, step.
// Gradients are means: with weights w_i the result is (1 / ranks) * sum over ranks and micro-batches of w_i * dloss_i.
// A weight of samples x ranks / global samples makes it the mean over the global batch, whatever the split.
//
// `set` is an optimizer's number. Each optimizer has its own reduction, so that a GAN's generator step neither reduces
// nor waits for the discriminator's gradients.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <lockstep/optim/optimizers.h>
#include <lockstep/plan/plan.h>
#include <lockstep/world/named_tensors.h>

namespace lockstep {

class World;

/// What rides in a gradient bucket, so that all ranks learn it at the same step without a collective of its own: two
/// requests, and the news that a save in the background has ended. Each is sent once, with the next reduction.
struct ControlLane {
  bool stop = false;
  bool save = false;
  bool save_ended = false;
  bool operator==(const ControlLane&) const = default;
  ControlLane operator|(const ControlLane& other) const noexcept {
    return {stop || other.stop, save || other.save, save_ended || other.save_ended};
  }
};

class Strategy {
 public:
  /// Leaves an ordinary module behind: no hooks; parameters and gradients own their memory.
  virtual ~Strategy();

  /// Collective. Compares parameter names, shapes, dtypes and order over ranks (CommError, exit 78, names the first
  /// difference), sends rank 0's parameters and buffers everywhere, builds the optimizers. Call after
  /// module.to(device). Parameters without requires_grad are frozen: no optimizer changes them. Throws: ConfigError (an
  /// optimizer that cannot be built, or nothing that requires gradients).
  virtual void prepare(torch::nn::Module& module, std::span<const OptimizerSpec> optimizers) = 0;

  /// Collective. After freezing or unfreezing parameters, between two steps: the optimizers go on with those that
  /// require gradients now. State, options and learning rates are kept, the state of frozen parameters as well: it is
  /// saved, and used when they are unfrozen. Throws: CommError (exit 78) naming the rank and the parameter that
  /// differs.
  virtual void prepare_again() = 0;

  /// Begins a step: rank 0's buffers go to all ranks before its first forward (dist.broadcast_buffers), and this rank's
  /// requests with the next reduction, in this step or a later one.
  virtual void begin_step(ControlLane mine = {}) = 0;

  /// Before a forward. `reduce`: this micro-batch's backward ends the accumulation and is the one in which ranks talk.
  virtual void begin_forward(bool reduce, std::size_t set = 0) = 0;

  /// Runs backward from `loss` (0-dim) with `weight` as its gradient. Modules may return anything: outputs that do not
  /// reach the loss count as unused.
  virtual void backward(const at::Tensor& loss, const at::Tensor& weight, std::size_t set = 0) = 0;
  void backward(const at::Tensor& loss, double weight = 1, std::size_t set = 0);

  /// This rank has no samples in a micro-batch that others have: takes part in the reduction with zeros.
  virtual void backward_nothing(std::size_t set = 0) = 0;

  /// After the last backward: gradients are the mean, the same on every rank. Throws: Error naming the parameters that
  /// got no gradient, before any of them is updated.
  virtual void finish(std::size_t set = 0) = 0;

  /// Drops the gradients. The only way while a strategy lives: Optimizer::zero_grad throws on gradients that are views
  /// of buckets.
  virtual void zero_grad(std::size_t set = 0) = 0;

  virtual at::Tensor grad_norm(std::size_t set = 0) = 0;  ///< 0-dim, on the device
  virtual void scale_grads(const at::Tensor& factor,
                           std::size_t set = 0) = 0;                   ///< 0-dim; clipping, unscaling, token weights
  virtual void set_lr_factor(double factor, std::size_t set = 0) = 0;  ///< learning rates = base x factor
  virtual double lr(std::size_t set = 0) const = 0;                    ///< of the first group
  virtual void step(std::size_t set = 0) = 0;                          ///< the optimizer's update
  virtual torch::optim::Optimizer& optimizer(std::size_t set = 0) = 0;
  virtual std::size_t sets() const noexcept = 0;

  /// All optimizers' state by parameter name, and its inverse.
  virtual NamedTensors optimizer_state() const = 0;
  virtual void load_optimizer_state(const NamedTensors& state) = 0;

  /// At the end of a step: what any rank sent, the same on every rank, each request in one step only. CPU: with the
  /// reductions of this step. GPU: with those of the step before, so that nothing waits.
  virtual ControlLane agreed() = 0;

  /// What this rank's mean was taken over (0-dim, on the device), when it is not known without communication (tokens).
  /// Summed up until finish(); afterwards mean_count() is the mean over ranks: dividing the gradients by it makes them
  /// exact.
  virtual void add_count(const at::Tensor& count, std::size_t set = 0) = 0;
  virtual at::Tensor mean_count(std::size_t set = 0) = 0;

 private:
  at::Tensor weight_{};  // the last weight as a tensor: it seldom changes
  double weight_value_ = 0;
};

std::unique_ptr<Strategy> make_strategy(const Plan& plan, World& world);

}  // namespace lockstep
