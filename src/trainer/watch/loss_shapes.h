// Whether a loss compares an output with a target of another shape.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// torch::mse_loss and its relatives repeat an output [N, 1] and a target [N] to [N, N] and train on nonsense.
class LossShapes {
 public:
  /// Warns if the first loss does so; it must still have its graph. Later ones are not looked at.
  void look(const at::Tensor& loss) {
    if (!std::exchange(has_looked_, true)) {
      warn_about(loss);
    }
  }

 private:
  static void warn_about(const at::Tensor& loss);

  bool has_looked_ = false;
};

}  // namespace lockstep
