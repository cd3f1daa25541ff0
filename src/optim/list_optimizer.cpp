#include "optim/list_optimizer.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

[[noreturn]] void throw_no_archive() {
  throw Error("this optimizer cannot be written into an archive of torch::save",
              "use the Trainer's checkpoints, or Strategy::optimizer_state()");
}

}  // namespace

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
  rounding_key_.reset();
  return loss;
}

void ListOptimizer::save(torch::serialize::OutputArchive&) const { throw_no_archive(); }
void ListOptimizer::load(torch::serialize::InputArchive&) { throw_no_archive(); }

}  // namespace lockstep
