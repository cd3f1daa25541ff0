#include "optim/list_optimizer.h"

#include <utility>

#include <ATen/core/grad_mode.h>

namespace lockstep {

ListOptimizer::ListOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                             std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                             GradientLists::StateTensor state_tensor)
    : Optimizer(groups, std::move(defaults)), gradients_(state_tensor) {}

at::Tensor ListOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  if (gradients_.take(*this)) {
    lists_changed();
  }
  update();
  gradients_.release();
  return loss;
}

}  // namespace lockstep
