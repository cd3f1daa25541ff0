#include "trainer/spike_gate.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "base/text.h"

namespace lockstep {

void SpikeGate::begin(Window& window, c10::Device device) const {
  const auto options = at::device(device).dtype(at::kDouble);
  const at::Tensor loaded = window.values;
  window.values = at::zeros({config_.window}, options);
  window.count = at::zeros({}, options);
  if (loaded.defined()) {
    const std::int64_t size = std::min(loaded.numel(), config_.window);
    window.values.narrow(0, config_.window - size, size).copy_(loaded.narrow(0, loaded.numel() - size, size));
    window.count.fill_(static_cast<double>(size));
  }
}

at::Tensor SpikeGate::check(std::int64_t step, std::size_t optimizer, const at::Tensor& norm) {
  const c10::NoGradGuard no_grad;
  windows_.resize(std::max(windows_.size(), optimizer + 1));
  Window& window = windows_[optimizer];
  if (!window.count.defined()) {
    begin(window, norm.device());
  }
  if (!age_.defined()) {
    age_ = at::arange(config_.window - 1, -1, -1, window.values.options());
  }
  const at::Tensor value = norm.detach().to(at::kDouble);
  const at::Tensor divisor = window.count.clamp_min(1);
  const at::Tensor mean = window.values.sum() / divisor;
  const at::Tensor squares = (window.values - mean).square_().mul_(age_ < window.count).sum();
  const at::Tensor least = mean.abs().clamp_min_(kLeastSpikeDeviation).mul_(kLeastSpikeDeviation);
  const at::Tensor deviation = at::maximum((squares / divisor).sqrt_(), least);
  const at::Tensor limit = mean + config_.z_score * deviation;
  const at::Tensor is_finite = value.isfinite();  // FiniteWatch finds the others
  const auto fewest = static_cast<double>(std::min(static_cast<std::int64_t>(kFewestForSpikes), config_.window));
  const at::Tensor skip = is_finite.logical_and(window.count >= fewest).logical_and_(value > limit);
  const at::Tensor kept = at::where(skip, limit, value).reshape({1});
  const at::Tensor moved = at::cat({window.values.slice(0, 1), kept});
  window.values = at::where(is_finite, moved, window.values);
  window.count = (window.count + is_finite).clamp_max_(config_.window);
  steps_.push_back(step);
  pending_.push_back(at::stack({value, mean, (value - mean) / deviation, skip.to(at::kDouble)}));
  return skip.to(at::kFloat);
}

std::vector<SpikeGate::Skipped> SpikeGate::take_skipped() {
  std::vector<Skipped> skipped;
  if (pending_.empty()) {
    return skipped;
  }
  const at::Tensor host = at::stack(pending_).cpu();
  const double* row = host.const_data_ptr<double>();
  for (std::size_t i = 0; i < steps_.size(); ++i, row += 4) {
    if (row[3] > 0) {
      skipped.push_back({.step = steps_[i], .value = row[0], .mean = row[1], .z_score = row[2]});
    }
  }
  steps_.clear();
  pending_.clear();
  return skipped;
}

NamedTensors SpikeGate::save() const {
  NamedTensors state;
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    const Window& window = windows_[i];
    if (window.values.defined()) {
      const auto size = window.count.defined() ? window.count.item<std::int64_t>() : window.values.numel();
      const at::Tensor values = window.values.cpu();
      state.emplace_back(fmt::format("{}", i), values.narrow(0, values.numel() - size, size).contiguous());
    }
  }
  return state;
}

void SpikeGate::load(const NamedTensors& state) {
  windows_.clear();
  for (const auto& [name, values] : state) {
    const auto index = static_cast<std::size_t>(parse_int(name).value_or(0));
    windows_.resize(std::max(windows_.size(), index + 1));
    windows_[index].values = values;  // check() moves them to the device
  }
}

}  // namespace lockstep
