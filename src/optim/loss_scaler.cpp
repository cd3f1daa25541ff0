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
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.numel() > 0) {  // LibTorch has no infinity norm of nothing
      by_dtype[gradient.scalar_type()].push_back(gradient);
    }
  }
  // In double, as GradScaler does: the reciprocal in float32 may not be exact.
  const at::Tensor factor = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  for (const auto& [dtype, list] : by_dtype) {
    if (dtype == at::kBFloat16) {  // LibTorch has no kernel for it on a GPU
      const at::Tensor largest = at::stack(at::_foreach_norm(list, std::numeric_limits<double>::infinity()));
      found_inf_.logical_or_(largest.isfinite().all().logical_not_());
      at::_foreach_mul_(list, factor);
    } else {
      at::_amp_foreach_non_finite_check_and_unscale_(list, found_inf_, factor);
    }
  }
}

void step_unless(const at::Tensor& flag, torch::optim::Optimizer& optimizer) {
  if (auto* skips = dynamic_cast<SkipsOnDevice*>(&optimizer)) {
    skips->skip_if(flag);
    optimizer.step();
  } else if (flag.item<float>() == 0) {
    optimizer.step();
  }
}

void LossScaler::step(torch::optim::Optimizer& optimizer, const at::Tensor& skip) {
  const at::NoGradGuard no_grad;
  step_unless(skip.defined() ? at::maximum(found_inf_, skip) : found_inf_, optimizer);
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf_, options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
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
