// Strategy for one device, without communication; base of the other strategies.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <lockstep/parallel/strategy.h>

#include "optim/loss_scaler.h"
#include "optim/param_groups.h"
#include "world/world_access.h"

namespace lockstep {

class ListOptimizer;
class SingleDevice;

class SingleDeviceOptimizer : public StrategyOptimizer {
 public:
  /// `strategy` is prepared for a module and must outlive this object.
  SingleDeviceOptimizer(OptimizerSpec spec, SingleDevice& strategy);

  void zero_grad() override;
  void begin_forward(Gradients gradients) override;
  void backward(const at::Tensor& loss, const at::Tensor& weight) override;
  void backward_nothing() override {}
  void add_count(const at::Tensor& count) override;
  at::Tensor mean_count() override { return count_; }
  void add_loss(const at::Tensor& loss) override { add_value(loss_, loss); }
  at::Tensor mean_loss() override { return value_or_zero(loss_); }
  void add_inputs(const at::Tensor& square) override { add_value(inputs_, square); }
  at::Tensor mean_inputs() override { return value_or_zero(inputs_); }
  void finish() override;
  void clip_groups() override;
  at::Tensor grad_norm() override;
  void scale_grads(const at::Tensor& factor) override;
  void clamp_grads(double limit) override;
  void set_lr(const ScheduleStep& step) override { set_rates(built_, step); }
  double lr() const override { return built_.optimizer->param_groups().front().options().get_lr(); }
  void change_lr(const std::function<double(double rate)>& changed) override { change_rates(built_, changed); }
  void skip_if(const at::Tensor& flag) override { skip_ = flag; }
  void step() override;
  at::Tensor loss_scale() override { return scaler_ ? scaler_->scale() : at::Tensor(); }
  at::Tensor skipped() override { return scaler_ ? scaler_->found_inf() : not_finite_; }
  torch::optim::Optimizer& torch_optimizer() override { return *built_.optimizer; }

  /// Call it after freezing or unfreezing parameters.
  virtual void build_again();
  /// Those that it updates.
  const NamedTensors& parameters() const noexcept { return parameters_; }
  const std::string& name() const noexcept { return spec_.name; }
  /// Whether it rounds updates at random.
  bool rounds() const noexcept { return rounded_ != nullptr; }
  virtual NamedTensors state() const;
  /// See lockstep::evaluation_values.
  virtual NamedTensors evaluation_values() const { return lockstep::evaluation_values(built_); }
  /// Loads its part from the state of all optimizers.
  void load_state(const NamedTensors& state);

 protected:
  /// The gradient with which a backward from `loss` begins.
  at::Tensor root_gradient(const at::Tensor& loss, const at::Tensor& weight) const {
    return scaler_ ? scaler_->scaled(weight, loss.scalar_type()) : weight;
  }
  /// Call it when the gradients are reduced.
  void unscale_grads();
  /// Call it before something that changes which gradients are finite; optim.non_finite skip needs it.
  void look_for_not_finite();
  /// Notes whether a norm of the gradients is finite, for optim.non_finite skip.
  void note_norm(const at::Tensor& norm);
  /// Call it after the first backward. Warns of parameters without a gradient; throws if no parameter has one.
  void look_for_unused();
  /// The names of parameters_ that have no gradient.
  std::vector<std::string> without_gradient() const;
  /// "2 of 29 parameters got no gradient on rank 0: a, b".
  std::string text_about(const std::vector<std::string>& without_gradient) const;
  static constexpr const char* kUnusedHint =
      "use them in the loss, freeze them (requires_grad_(false)), or set --dist.find_unused_parameters true";

  SingleDevice& strategy_;
  const std::size_t index_;  // among those of the strategy
  OptimizerSpec spec_;
  BuiltOptimizer built_{};
  NamedTensors parameters_{};  // selected ones that require gradients; a shared parameter is listed once
  at::Tensor count_{};         // sum of the counts of this step, if the task returns counts
  at::Tensor loss_{};          // sum of the losses of this step, if they were added
  at::Tensor inputs_{};        // likewise of the mean squares of the inputs
  bool ran_backward_ = false;  // with a loss

 private:
  void build();
  std::string scaler_key() const;
  void begin_rounding();
  bool skips_not_finite() const;
  const std::vector<at::Tensor>& defined_grads();
  void add_grad(at::Tensor& gradient);
  static void add_value(at::Tensor& sum, const at::Tensor& value);
  at::Tensor value_or_zero(const at::Tensor& value) const;

  std::optional<LossScaler> scaler_{};  // with fp16_mixed
  at::Tensor not_finite_{};             // a flag: a gradient of this step is not finite; undefined: not known
  at::Tensor skip_{};                   // of the next step()
  std::vector<at::Tensor> grads_{};     // reused by defined_grads()
  ListOptimizer* rounded_ = nullptr;    // the optimizer, if it has to round updates at random
  std::int64_t rounded_step_ = -1;      // of the last update that was rounded
  std::uint64_t updates_ = 0;           // in that step
  bool needs_closure_ = false;          // asking for the class takes too long for each step
  bool looked_for_unused_ = false;
};

class SingleDevice : public Strategy {
 public:
  SingleDevice(const OptimConfig& optim, const DistConfig& dist, World& world, Precision precision = Precision::fp32,
               std::uint64_t seed = 0)
      : world_(world),
        progress_(WorldAccess::progress(world)),
        clock_(WorldAccess::clock(world)),
        dist_(dist),
        seed_(seed),
        optim_(optim),
        precision_(precision) {}

  void prepare(torch::nn::Module& module, std::span<const OptimizerSpec> optimizers) override;
  void prepare_again() override;
  void begin_step(std::int64_t number, StepRequests mine) override;
  StepRequests agreed() override;
  void end_forward(bool) override {}
  std::size_t optimizer_count() const noexcept override { return optimizers_.size(); }
  using Strategy::optimizer;
  StrategyOptimizer& optimizer(std::size_t index) override { return *optimizers_.at(index); }
  NamedTensors optimizer_state() const override;
  void load_optimizer_state(const NamedTensors& state) override;
  std::shared_ptr<void> evaluation_scope() override;
  void keep_evaluation_values() override;

 protected:
  friend class SingleDeviceOptimizer;

  virtual std::unique_ptr<SingleDeviceOptimizer> make_optimizer(const OptimizerSpec& spec);
  void begin_phase(Phase phase) noexcept {
    progress_.set_phase(phase);
    clock_.enter(phase);
  }
  /// What follows is code of the program, in a loop by hand. In a fit the Trainer notes where the rank is.
  void leave_phase() noexcept {
    if (!progress_.in_fit) {
      progress_.set_phase(Phase::program);
    }
  }
  /// The step is complete.
  void end_step() noexcept {
    if (!progress_.in_fit) {
      progress_.set_step(step_ + 1);
    }
    leave_phase();
  }
  /// Takes the requests for the next reduction; they are sent only once.
  StepRequests take_requests() { return std::exchange(mine_, {}); }

  World& world_;
  ProgressRecord& progress_;
  DeviceClock& clock_;
  const DistConfig dist_;
  const std::uint64_t seed_;  // of rounding at random
  torch::nn::Module* module_ = nullptr;
  std::vector<std::unique_ptr<SingleDeviceOptimizer>> optimizers_{};
  std::int64_t step_ = 0;  // number of the current step

 private:
  void check_that_something_trains() const;
  /// Throws: ConfigError if nothing can be rounded at random, and optim.stochastic_rounding asks for it.
  void check_rounding() const;
  /// Throws: ConfigError if two optimizers train one parameter. Finds those that none trains.
  void look_at_owners();
  /// Parameters and the values with which they are evaluated, if these are others.
  std::vector<std::pair<at::Tensor, at::Tensor>> evaluated_parameters() const;

  const OptimConfig optim_;
  const Precision precision_;
  StepRequests mine_{};  // requests that are not yet sent
  StepRequests agreed_{};
  NamedTensors untrained_{};          // require gradients, and no optimizer has them
  std::weak_ptr<void> evaluating_{};  // the scope that exists
  bool has_kept_evaluation_values_ = false;
  bool has_noted_steps_ = false;  // of a loop by hand
};

}  // namespace lockstep
