#include "optim/loss_scaler.h"

#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

/// Multiplies the gradients by `factor` and sets `found_inf` to 1 if one of them is not finite.
void multiply_and_check(std::span<const at::Tensor> gradients, const at::Tensor& factor, at::Tensor& found_inf) {
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.numel() > 0) {  // LibTorch has no infinity norm of nothing
      by_dtype[gradient.scalar_type()].push_back(gradient);
    }
  }
  for (const auto& [dtype, list] : by_dtype) {
    if (dtype == at::kBFloat16) {  // LibTorch has no kernel for it on a GPU
      const at::Tensor largest = at::stack(at::_foreach_norm(list, std::numeric_limits<double>::infinity()));
      found_inf.logical_or_(largest.isfinite().all().logical_not_());
      at::_foreach_mul_(list, factor);
    } else {
      at::_amp_foreach_non_finite_check_and_unscale_(list, found_inf, factor);
    }
  }
}

}  // namespace

LossScaler::LossScaler(c10::Device device, LossScalerOptions options)
    : options_(options),
      scale_(at::full({}, options.initial, at::device(device).dtype(at::kFloat))),
      growth_tracker_(at::zeros({}, at::device(device).dtype(at::kInt))),
      found_inf_(at::zeros({}, at::device(device).dtype(at::kFloat))) {}

at::Tensor LossScaler::scaled(const at::Tensor& gradient, at::ScalarType dtype) const {
  const at::NoGradGuard no_grad;
  return (gradient * scale_).to(dtype);
}

void LossScaler::unscale(std::span<const at::Tensor> gradients) {
  const at::NoGradGuard no_grad;
  found_inf_.zero_();
  // In double, as GradScaler does: the reciprocal in float32 may not be exact.
  multiply_and_check(gradients, scale_.to(at::kDouble).reciprocal().to(at::kFloat), found_inf_);
}

at::Tensor any_of(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() ? at::maximum(a, b) : a.defined() ? a : b;
}

at::Tensor any_not_finite(std::span<const at::Tensor> gradients, c10::Device device) {
  const at::NoGradGuard no_grad;
  at::Tensor found = at::zeros({}, at::device(device).dtype(at::kFloat));
  // By 1: LibTorch has no kernel that only looks.
  multiply_and_check(gradients, at::ones_like(found), found);
  return found;
}

void step_unless(const at::Tensor& flag, torch::optim::Optimizer& optimizer) {
  if (flag.defined()) {
    if (auto* skips = dynamic_cast<SkipsOnDevice*>(&optimizer)) {
      skips->skip_if(flag);
    } else if (flag.item<float>() != 0) {
      return;
    }
  }
  optimizer.step();
}

void LossScaler::step(torch::optim::Optimizer& optimizer, const at::Tensor& skip) {
  const at::NoGradGuard no_grad;
  step_unless(any_of(found_inf_, skip), optimizer);
  constexpr double kGrowth = 2;
  constexpr double kBackoff = 0.5;
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf_, kGrowth, kBackoff, options_.growth_interval);
}

NamedTensors LossScaler::state(const std::string& prefix) const {
  return {{prefix + ".scale", scale_}, {prefix + ".growth_tracker", growth_tracker_}};
}

void LossScaler::load_state(const std::string& prefix, const NamedTensors& state) {
  const at::NoGradGuard no_grad;
  for (auto [name, tensor] : {std::pair(".scale", &scale_), std::pair(".growth_tracker", &growth_tracker_)}) {
    for (const auto& [key, value] : state) {
      if (key != prefix + name) {
        continue;
      }
      if (value.numel() != 1 || value.scalar_type() != tensor->scalar_type()) {
        throw CheckpointError(
            fmt::format("{}: found {} numbers of dtype {}, expected one of dtype {}", key, value.numel(),
                        c10::toString(value.scalar_type()), c10::toString(tensor->scalar_type())),
            "choose another checkpoint");
      }
      tensor->copy_(value.reshape({}));
    }
  }
}

}  // namespace lockstep
