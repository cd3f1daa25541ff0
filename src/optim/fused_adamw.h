// Adam and AdamW that update all parameters of a group in one kernel.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>

#include "optim/list_optimizer.h"
#include "optim/loss_scaler.h"

namespace lockstep {

/// State of one parameter.
struct FusedAdamWState : public torch::optim::OptimizerCloneableParamState<FusedAdamWState> {
  at::Tensor
      step{};  ///< float32, 0-dim, on the parameter's device; one tensor for all parameters with the same step count
  at::Tensor exp_avg{};
  at::Tensor exp_avg_sq{};
  at::Tensor max_exp_avg_sq{};  ///< undefined without amsgrad
};

enum class WeightDecay { decoupled, in_gradient };  ///< of AdamW, of Adam

/// Update and options of torch::optim::AdamW and Adam, on at::_fused_adamw_ and at::_fused_adam_.
class FusedAdamW : public ListOptimizer, public SkipsOnDevice {
 public:
  explicit FusedAdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                      const torch::optim::AdamWOptions& defaults = {},
                      WeightDecay weight_decay = WeightDecay::decoupled);

  void skip_if(at::Tensor found_inf) override { found_inf_ = std::move(found_inf); }

  /// Makes parameters with the same step count share one counter again, after their states were replaced. Synchronizes
  /// with the device.
  void share_steps();

 private:
  struct Moments {
    std::vector<at::Tensor> exp_avgs{};
    std::vector<at::Tensor> exp_avg_sqs{};
    std::vector<at::Tensor> max_exp_avg_sqs{};  // empty without amsgrad
    std::vector<at::Tensor> steps{};
  };

  void lists_changed() override;
  void update() override;
  void create_states();

  const WeightDecay weight_decay_;
  at::Tensor found_inf_{};              // of the next step
  std::vector<Moments> moments_{};      // in the order of lists()
  std::vector<at::Tensor> counters_{};  // the distinct tensors among all `steps`
};

}  // namespace lockstep
