// lockstep/parallel/strategy.h
//
// Data parallelism for a training loop: the Trainer's or your own.
//
// Per step, call strategy.begin_step(number). Then, for `auto& optimizer = strategy.optimizer()`, call zero_grad; for
// each micro-batch begin_forward, your forward, backward; then finish and step. Gradients are means: with weights w_i
// the result is (1 / ranks) * sum over ranks and micro-batches of w_i * dloss_i. With weights of samples x ranks /
// global samples, it is the mean over the global batch for any split.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include <lockstep/optim/optimizers.h>
#include <lockstep/parallel/gradient_hook.h>
#include <lockstep/plan/plan.h>
#include <lockstep/tensor/named_tensors.h>

namespace [[gnu::visibility("default")]] lockstep {

class World;

/// Requests of a rank that are sent together with the gradients. All ranks receive them at the same step, without an
/// additional collective. Each request is sent once, with the next reduction.
struct StepRequests {
  bool stop = false;
  bool save = false;
  bool save_ended = false;  ///< a background save has ended
  bool validate = false;
  bool report = false;
  bool command = false;  ///< a command of the program (Trainer::on_command)
  bool operator==(const StepRequests&) const = default;
  StepRequests operator|(const StepRequests& other) const noexcept {
    StepRequests both;
    for (const auto request : kAll) {
      both.*request = this->*request || other.*request;
    }
    return both;
  }

  /// Every request; what is sent has this order.
  static const std::array<bool StepRequests::*, 6> kAll;
};
/// All requests, in the order in which they are sent.
inline constexpr std::array<bool StepRequests::*, 6> StepRequests::kAll{
    &StepRequests::stop,     &StepRequests::save,   &StepRequests::save_ended,
    &StepRequests::validate, &StepRequests::report, &StepRequests::command};

/// What the backward of a micro-batch does with the gradients.
enum class Gradients {
  accumulate,  ///< another micro-batch of the step follows
  reduce,      ///< it was the last one: the gradients are reduced over the ranks
};

/// One optimizer with its parameters, their gradients, and the reduction of the gradients over ranks. Reductions of
/// different optimizers are independent: a GAN's generator step neither reduces the discriminator's gradients nor waits
/// for them. Every rank makes the same calls in the same order: the backward with Gradients::reduce, finish() and
/// step() may exchange data.
class StrategyOptimizer {
 public:
  virtual ~StrategyOptimizer();

  /// Clears the gradients. Do not call Optimizer::zero_grad: it throws if gradients are views of buckets.
  virtual void zero_grad() = 0;

  /// Call it before each forward, with what its backward does.
  virtual void begin_forward(Gradients gradients) = 0;

  /// Runs backward from `loss` (0-dim) with `weight` as its gradient. Modules may return any type: an output that does
  /// not affect the loss is unused.
  virtual void backward(const at::Tensor& loss, const at::Tensor& weight) = 0;
  void backward(const at::Tensor& loss, double weight = 1);

  /// Replaces backward() if this rank has no samples in a micro-batch that other ranks have: contributes zeros to the
  /// reduction.
  virtual void backward_nothing() = 0;

  /// Adds the number by which this rank's mean was divided (0-dim, on the device), if the other ranks do not know it,
  /// such as a number of tokens. After finish(), mean_count() is the mean of the sums over ranks; gradients divided by
  /// it are exact. Throws: CommError (exit 78) on a rank that has samples and no count, if another rank has a count; on
  /// the CPU only.
  virtual void add_count(const at::Tensor& count) = 0;
  virtual at::Tensor mean_count() = 0;

  /// Adds a loss of this rank (0-dim, on the device) times its weight. Call it before backward(). After finish(),
  /// mean_loss() is the mean of the sums over ranks, the same on all of them: 0-dim float32, 0 if no rank added
  /// anything. It is sent with the gradients.
  virtual void add_loss(const at::Tensor& loss) = 0;
  virtual at::Tensor mean_loss() = 0;

  /// As add_loss() and mean_loss(), for the mean square of the inputs of this rank.
  virtual void add_inputs(const at::Tensor& square) = 0;
  virtual at::Tensor mean_inputs() = 0;

  /// Call it after the last backward. Gradients are then the mean and equal on every rank. Throws, unless
  /// find_unused_parameters: Error naming the parameters without a gradient, before any update. With one rank it looks
  /// in the first step only: it warns if some have none, and throws if all have none.
  virtual void finish() = 0;

  virtual void clip_groups() = 0;                          ///< to GroupSpec::max_grad_norm
  virtual at::Tensor grad_norm() = 0;                      ///< 0-dim, on the device
  virtual void scale_grads(const at::Tensor& factor) = 0;  ///< 0-dim; clipping, unscaling, token weights
  virtual void clamp_grads(double limit) = 0;              ///< each element to -limit ... limit
  /// Learning rates = base x factor of their schedule. Throws: Error (a factor that is negative or not finite).
  virtual void set_lr(const ScheduleStep& step) = 0;
  virtual double lr() const = 0;  ///< of the first group
  /// Gives each group the rate `changed(rate)`, which lasts. Where the schedule is 0 now, `changed` gets and returns
  /// the base rate.
  virtual void change_lr(const std::function<double(double rate)>& changed) = 0;
  /// For the next step() only. `flag`: 0-dim float32 on the device, the same on all ranks; 1: step() changes neither
  /// parameters nor the state of the optimizer.
  virtual void skip_if(const at::Tensor& flag) = 0;
  /// Updates the parameters. With fp16_mixed or optim.non_finite skip, a step with a gradient that is not finite
  /// changes nothing but the loss scale, on all ranks alike.
  virtual void step() = 0;
  /// fp16_mixed: the factor of the loss in backward(); 0-dim, on the device. Otherwise undefined.
  virtual at::Tensor loss_scale() = 0;
  /// fp16_mixed and optim.non_finite skip: 1 if the last step() changed nothing because a gradient was not finite, else
  /// 0; 0-dim, on the device. Otherwise undefined.
  virtual at::Tensor skipped() = 0;
  virtual torch::optim::Optimizer& torch_optimizer() = 0;

 private:
  at::Tensor weight_{};  // the last weight as a tensor, cached because it seldom changes
  double weight_value_ = 0;
};

/// Keeps the model and the optimizers of all ranks equal. One object per training; the text at the top shows a step.
class Strategy {
 public:
  /// Removes all hooks from the module; its parameters and gradients own their memory afterwards.
  virtual ~Strategy();

  /// Collective. Compares parameter names, shapes, dtypes and order over ranks (CommError, exit 78, names the first
  /// difference), sends rank 0's parameters and buffers to all ranks, builds the optimizers. Call it after
  /// module.to(device). Parameters without requires_grad are frozen: no optimizer changes them. Throws: ConfigError (an
  /// optimizer that cannot be built, or nothing that requires gradients).
  virtual void prepare(torch::nn::Module& module, std::span<const OptimizerSpec> optimizers) = 0;

  /// Collective. Call it between two steps, after freezing or unfreezing parameters: the optimizers then update the
  /// parameters that require gradients now. State, options and learning rates are kept. The state of frozen parameters
  /// is also kept and saved. Throws: CommError (exit 78) naming the rank and the parameter that differ.
  virtual void prepare_again() = 0;

  /// Begins a step. `number`: of the step in the run, from 0, also after a resume: random rounding (dist.compression)
  /// depends on it, and the launcher knows by it whether a restart has got further. Before its first forward, rank 0
  /// sends its buffers to all ranks (dist.broadcast_buffers). The requests of this rank are sent with the next
  /// reduction, in this step or a later one.
  virtual void begin_step(std::int64_t number, StepRequests mine) = 0;
  void begin_step(std::int64_t number) { begin_step(number, {}); }

  /// Call it at the end of a step; what follows may take any time. Returns the requests of all ranks, the same on every
  /// rank; each request is returned in only one step. On a CPU they belong to this step's reductions, on a GPU to those
  /// of the previous step, to avoid a wait.
  [[nodiscard]] virtual StepRequests agreed() = 0;

  virtual std::size_t optimizer_count() const noexcept = 0;
  /// `index`: position in the list given to prepare(). The same object for the rest of the training.
  virtual StrategyOptimizer& optimizer(std::size_t index) = 0;
  StrategyOptimizer& optimizer() { return optimizer(0); }

  /// Ends a forward in training mode that has no backward, for SyncBatchNorm: a step has another way. Every rank calls
  /// it once per micro-batch. `ran`: false if this rank had no samples. With SyncBatchNorm: collective.
  virtual void end_forward(bool ran) = 0;

  /// The state of all optimizers by parameter name; load_optimizer_state restores it. With dist.shard_optimizer:
  /// collective, complete on rank 0 and this rank's share on the others.
  virtual NamedTensors optimizer_state() const = 0;
  virtual void load_optimizer_state(const NamedTensors& state) = 0;

  /// Call it between two steps. While the result exists, the parameters have the values with which the model is
  /// evaluated; nullptr: they always have them. Only schedule_free_adamw() trains other values. With
  /// dist.shard_optimizer: collective.
  [[nodiscard]] virtual std::shared_ptr<void> evaluation_scope() = 0;
  /// Gives the parameters these values for good. Call it after the last step, as the Trainer does. With
  /// dist.shard_optimizer: collective.
  virtual void keep_evaluation_values() = 0;
};

/// With one rank, nothing is reduced, and the hook is not called. The strategy keeps a reference to `world`. Throws:
/// ConfigError (a hook and dist.compression).
std::unique_ptr<Strategy> make_strategy(const Plan& plan, World& world, GradientHook hook = {});

/// Makes the strategy of a fit; see Trainer::use_strategy.
using StrategyFactory = std::function<std::unique_ptr<Strategy>(const Plan&, World&)>;

}  // namespace lockstep
