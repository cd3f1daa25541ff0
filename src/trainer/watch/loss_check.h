// What the graph of the first losses says about mistakes of the task.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/trainer/task.h>

namespace lockstep {

/// Looks at the first loss of the first two steps, and warns about what LibTorch accepts:
/// - torch::mse_loss and its relatives repeat an output [N, 1] and a target [N] to [N, N] and train on nonsense;
/// - weights that are not registered in the module are never updated.
class LossCheck {
 public:
  explicit LossCheck(Task& task) : task_(task) {}

  /// The loss must still have its graph. `step`: as Step::number().
  void look(const at::Tensor& loss, std::int64_t step) {
    if (steps_ < 2 && step != last_step_) {
      ++steps_;
      last_step_ = step;
      look_at(loss);
    }
  }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  void look_at(const at::Tensor& loss);
  std::vector<at::Tensor> leaves_outside_module(const at::Tensor& loss) const;

  Task& task_;
  int steps_ = 0;
  std::int64_t last_step_ = -1;
  std::vector<WeakTensor> suspects_{};  // leaves of the first loss that are not in the module
};

}  // namespace lockstep
