// SGD that updates all parameters of a group in one kernel.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/sgd.h>

#include "optim/gradient_lists.h"

namespace lockstep {

/// Update, options and state of torch::optim::SGD, on at::_fused_sgd_. Skips parameters without a gradient.
class FusedSgd : public torch::optim::Optimizer {
 public:
  FusedSgd(const std::vector<torch::optim::OptimizerParamGroup>& groups, const torch::optim::SGDOptions& defaults);

  /// Throws: Error naming a parameter with a sparse gradient.
  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  std::vector<at::Tensor> momentum_buffers(const GradientList& list);

  GradientLists gradients_;
  std::vector<std::vector<at::Tensor>> buffers_{};  // in the order of gradients_.lists(); empty: no momentum
};

}  // namespace lockstep
