// Updates with a closure.
#pragma once

#include <lockstep/trainer/step.h>

namespace lockstep {

/// What Task::optimize does with an optimizer that has a closure, with `loss` in place of training_step().
template <class Loss>
StepOutput minimize_with(Step& step, const Loss& loss) {
  OptimizerStep& optimizer = step.optimizer();
  return optimizer.minimize([&] {
    optimizer.zero_grad();
    StepOutput last;
    for (const Batch& batch : step.batches()) {
      last = optimizer.forward(batch, [&](const Batch& b) -> StepOutput { return loss(b); });
      optimizer.backward(last);
    }
    return last;
  });
}

}  // namespace lockstep
