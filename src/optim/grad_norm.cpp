#include "optim/grad_norm.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

namespace lockstep {
namespace {

at::TensorList as_list(std::span<const at::Tensor> tensors) { return {tensors.data(), tensors.size()}; }

}  // namespace

at::Tensor global_norm(std::span<const at::Tensor> gradients) {
  const at::NoGradGuard no_grad;
  if (gradients.empty()) {
    return at::zeros({}, at::kFloat);
  }
  // Half types are summed in float, because their squares overflow or round to zero.
  const bool has_double = std::any_of(gradients.begin(), gradients.end(),
                                      [](const at::Tensor& gradient) { return gradient.scalar_type() == at::kDouble; });
  const auto norms = at::_foreach_norm(as_list(gradients), 2, has_double ? at::kDouble : at::kFloat);
  return at::linalg_vector_norm(at::stack(norms), 2);
}

at::Tensor clip_factor(const at::Tensor& norm, double max_norm) {
  return norm.add(1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0);
}

void clamp_(std::span<const at::Tensor> gradients, double limit) {
  const at::NoGradGuard no_grad;
  if (!gradients.empty()) {
    at::_foreach_clamp_min_(as_list(gradients), -limit);
    at::_foreach_clamp_max_(as_list(gradients), limit);
  }
}

void scale_(std::span<const at::Tensor> gradients, const at::Tensor& factor) {
  const at::NoGradGuard no_grad;
  if (!gradients.empty()) {
    at::_foreach_mul_(as_list(gradients), factor);
  }
}

}  // namespace lockstep
