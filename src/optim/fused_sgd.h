// SGD that updates all parameters of a group in one kernel.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/sgd.h>

#include "optim/gradient_lists.h"
#include "optim/loss_scaler.h"

namespace lockstep {

/// Update, options and state of torch::optim::SGD, on at::_fused_sgd_. Skips parameters without a gradient.
class FusedSgd : public torch::optim::Optimizer, public SkipsOnDevice {
 public:
  FusedSgd(const std::vector<torch::optim::OptimizerParamGroup>& groups, const torch::optim::SGDOptions& defaults);

  /// Throws: Error naming a parameter with a sparse gradient.
  at::Tensor step(LossClosure closure = nullptr) override;
  /// Waits for the device if a parameter has no momentum yet.
  void skip_if(at::Tensor found_inf) override { found_inf_ = std::move(found_inf); }
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  std::vector<at::Tensor> momentum_buffers(const GradientList& list);

  at::Tensor found_inf_{};  // of the next step
  GradientLists gradients_;
  std::vector<std::vector<at::Tensor>> buffers_{};  // in the order of gradients_.lists(); empty: no momentum
};

}  // namespace lockstep
