// SGD that updates all parameters of a group in one kernel.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/sgd.h>

#include "optim/list_optimizer.h"
#include "optim/loss_scaler.h"

namespace lockstep {

/// Update, options and state of torch::optim::SGD, on at::_fused_sgd_.
class FusedSgd : public ListOptimizer, public SkipsOnDevice {
 public:
  FusedSgd(const std::vector<torch::optim::OptimizerParamGroup>& groups, const torch::optim::SGDOptions& defaults);

  /// Waits for the device if a parameter has no momentum yet.
  void skip_if(at::Tensor found_inf) override { found_inf_ = std::move(found_inf); }

 private:
  void lists_changed() override { buffers_.assign(lists().size(), {}); }
  void update() override;
  std::vector<at::Tensor> momentum_buffers(const GradientList& list);

  at::Tensor found_inf_{};                          // of the next step
  std::vector<std::vector<at::Tensor>> buffers_{};  // in the order of lists(); empty: no momentum
};

}  // namespace lockstep
