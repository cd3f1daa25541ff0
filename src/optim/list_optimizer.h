// Base of the optimizers that update lists of tensors.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "optim/gradient_lists.h"

namespace lockstep {

/// Skips parameters without a gradient.
class ListOptimizer : public torch::optim::Optimizer {
 public:
  /// Throws: Error naming a parameter with a sparse gradient.
  at::Tensor step(LossClosure closure = nullptr) final;
  /// The states were replaced: the next step makes new lists.
  void forget_lists() noexcept { gradients_.forget(); }

 protected:
  ListOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                std::unique_ptr<torch::optim::OptimizerOptions> defaults, GradientLists::StateTensor state_tensor);

  /// The lists are new: called before the first update with them.
  virtual void lists_changed() = 0;
  /// Updates the parameters of all lists.
  virtual void update() = 0;

  std::span<const GradientList> lists() const noexcept { return gradients_.lists(); }
  template <class Options>
  const Options& options_of(const GradientList& list) const {
    return static_cast<const Options&>(param_groups_[list.group].options());
  }

 private:
  GradientLists gradients_;
};

}  // namespace lockstep
