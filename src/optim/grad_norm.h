// Gradient norm and clipping without a host synchronisation.
#pragma once

#include <span>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace lockstep {

/// Global 2-norm of the given gradients, which are on `device`. Shape: 0-dim, float64 if one of them is, else float32;
/// on the device. Without gradients: 0.
at::Tensor global_norm(std::span<const at::Tensor> gradients, c10::Device device);

/// min(1, max_norm / (norm + 1e-6)) as a 0-dim tensor, the factor of torch.nn.utils.clip_grad_norm_.
at::Tensor clip_factor(const at::Tensor& norm, double max_norm);

/// Limits every element to -limit ... limit, in place, as torch.nn.utils.clip_grad_value_.
void clamp_(std::span<const at::Tensor> gradients, double limit);

/// Multiplies all gradients in place by a 0-dim tensor.
void scale_(std::span<const at::Tensor> gradients, const at::Tensor& factor);

}  // namespace lockstep
