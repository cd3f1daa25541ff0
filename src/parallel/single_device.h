// One device, no communication; what the other strategies build on.
#pragma once

#include <utility>

#include <torch/nn/module.h>

#include <lockstep/parallel/strategy.h>

#include "optim/param_groups.h"
#include "world/world_access.h"

namespace lockstep {

class SingleDevice : public Strategy {
 public:
  /// `lr`: the learning rate of config.optim.lr, 0 for the factories' own.
  SingleDevice(double lr, World& world) : world_(world), progress_(WorldAccess::progress(world)), lr_(lr) {}

  void prepare(torch::nn::Module& module, std::span<const OptimizerSpec> optimizers) override;
  void prepare_again() override;
  void begin_step(ControlLane mine) override;
  void begin_forward(bool reduce, std::size_t set) override;
  void backward(const at::Tensor& loss, const at::Tensor& weight, std::size_t set) override;
  void backward_nothing(std::size_t set) override;
  void finish(std::size_t set) override;
  void zero_grad(std::size_t set) override;
  at::Tensor grad_norm(std::size_t set) override;
  void scale_grads(const at::Tensor& factor, std::size_t set) override;
  void set_lr_factor(double factor, std::size_t set) override;
  double lr(std::size_t set) const override;
  void step(std::size_t set) override;
  torch::optim::Optimizer& optimizer(std::size_t set) override;
  std::size_t sets() const noexcept override { return sets_.size(); }
  NamedTensors optimizer_state() const override;
  void load_optimizer_state(const NamedTensors& state) override;
  ControlLane agreed() override { return agreed_; }
  void add_count(const at::Tensor& count, std::size_t set) override;
  at::Tensor mean_count(std::size_t set) override;

 protected:
  /// One optimizer and what it steers.
  struct Set {
    OptimizerSpec spec{};
    NamedTensors parameters{};        // those that require gradients, shared ones once
    std::vector<at::Tensor> grads{};  // scratch of grad_norm and scale_grads
    BuiltOptimizer built{};
    at::Tensor count{};  // of this step, if the task gives one
  };

  /// What the norm is taken of and what is scaled: dense real tensors that share memory with the gradients.
  const std::vector<at::Tensor>& defined_grads(Set& set);
  /// The requests that the next reduction sends; they are not sent again.
  ControlLane take_requests() { return std::exchange(mine_, {}); }

  World& world_;
  ProgressRecord& progress_;
  double lr_;
  torch::nn::Module* module_ = nullptr;
  std::vector<Set> sets_{};

 private:
  void build(Set& set);
  void check_that_something_trains() const;

  ControlLane mine_{};  // not sent yet
  ControlLane agreed_{};
};

}  // namespace lockstep
