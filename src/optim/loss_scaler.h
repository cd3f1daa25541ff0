// Dynamic loss scale for gradients in half precision.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <lockstep/tensor/named_tensors.h>

namespace lockstep {

/// An optimizer whose update can be prevented by a number on the device.
class SkipsOnDevice {
 public:
  virtual ~SkipsOnDevice() = default;
  /// For the next step() only. `found_inf`: 0-dim float32 on the device of the parameters; 1: step() changes nothing.
  virtual void skip_if(at::Tensor found_inf) = 0;
};

/// 1 if one of the flags is. A flag is 1 or 0: 0-dim float32; an undefined one counts as 0.
at::Tensor any_of(const at::Tensor& a, const at::Tensor& b);

/// A flag on `device`: 1 if one of the gradients, which are dense and real, is not finite. Does not wait for the
/// device.
at::Tensor any_not_finite(std::span<const at::Tensor> gradients, c10::Device device);

/// Runs the optimizer unless `flag` is 1, which is on the device of the parameters. Waits for the device if the
/// optimizer is not a SkipsOnDevice.
void step_unless(const at::Tensor& flag, torch::optim::Optimizer& optimizer);

/// Settings and defaults of torch.amp.GradScaler, which doubles the scale, and halves it.
struct LossScalerOptions {
  double initial = 65536;
  std::int64_t growth_interval = 2000;  ///< steps in a row without infinity, after which the scale grows
};

/// The algorithm of torch.amp.GradScaler for one optimizer, on the device. The gradients are equal on all ranks when
/// they are looked at, so all ranks come to the same verdict.
class LossScaler {
 public:
  explicit LossScaler(c10::Device device, LossScalerOptions options = {});

  /// `gradient` x scale, the gradient of a loss of `dtype`.
  at::Tensor scaled(const at::Tensor& gradient, at::ScalarType dtype) const;
  /// Divides the gradients by the scale and notes whether one is not finite. They are dense and real.
  void unscale(std::span<const at::Tensor> gradients);
  /// Runs the optimizer, unless a gradient was not finite or `skip` is 1, and changes the scale. Waits like
  /// step_unless(). `skip`: undefined, or 0-dim float32.
  void step(torch::optim::Optimizer& optimizer, const at::Tensor& skip = {});

  const at::Tensor& scale() const noexcept { return scale_; }
  const at::Tensor& found_inf() const noexcept { return found_inf_; }  ///< of the last unscale()

  NamedTensors state(const std::string& prefix) const;
  /// Ignores tensors of other names. Throws: CheckpointError (another dtype or shape).
  void load_state(const std::string& prefix, const NamedTensors& state);

 private:
  LossScalerOptions options_;
  at::Tensor scale_;           // float32, 0-dim
  at::Tensor growth_tracker_;  // int32, 0-dim: steps in a row without infinity
  at::Tensor found_inf_;       // float32, 0-dim
};

}  // namespace lockstep
