// AdamW that updates all parameters of a group in one kernel.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>

#include "optim/gradient_lists.h"

namespace lockstep {

/// State of one parameter. In an archive it equals the state of torch::optim::AdamW, so each can read the other's.
struct FusedAdamWState : public torch::optim::OptimizerCloneableParamState<FusedAdamWState> {
  at::Tensor
      step{};  ///< float32, 0-dim, on the parameter's device; one tensor for all parameters with the same step count
  at::Tensor exp_avg{};
  at::Tensor exp_avg_sq{};

  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// Update and options of torch::optim::AdamW, on at::_fused_adamw_. Skips parameters without a gradient.
class FusedAdamW : public torch::optim::Optimizer {
 public:
  explicit FusedAdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                      const torch::optim::AdamWOptions& defaults = {});

  /// Throws: Error naming a parameter with a sparse gradient, or a group with amsgrad.
  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// Makes parameters with the same step count share one counter again, after their states were replaced. Synchronizes
  /// with the device.
  void share_steps();

 private:
  struct Moments {
    std::vector<at::Tensor> exp_avgs{};
    std::vector<at::Tensor> exp_avg_sqs{};
    std::vector<at::Tensor> steps{};
  };

  void collect_moments();
  void create_states();

  GradientLists gradients_;
  std::vector<Moments> moments_{};      // in the order of gradients_.lists()
  std::vector<at::Tensor> counters_{};  // the distinct tensors among all `steps`
};

}  // namespace lockstep
