#include "trainer/watch/spike_gate.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "base/text.h"
#include "world/world_access.h"

namespace lockstep {

SpikeGate::Windows& SpikeGate::windows_of(std::size_t optimizer) {
  windows_.resize(std::max(windows_.size(), optimizer + 1));
  Windows& windows = windows_[optimizer];
  if (!windows.values.defined()) {
    windows.values = at::zeros({std::ssize(names_), config_.window}, at::kDouble);
    windows.counts = at::zeros({std::ssize(names_)}, at::kDouble);
  }
  return windows;
}

std::string Spike::text() const {
  return fmt::format(
      "the {} of step {} is {:.5g}, {:.1f} standard deviations above the mean of the steps before, {:.5g}{}",
      name == "inputs" ? "root mean square of the inputs"
      : name == "loss" ? "loss"
                       : "gradient norm",
      step, value, z_score, mean, rank ? fmt::format("; only the loss of rank {} is that large", *rank) : "");
}

at::Tensor SpikeGate::check(std::int64_t step, std::size_t optimizer, const Values& found) {
  const c10::NoGradGuard no_grad;
  Windows& windows = windows_of(optimizer);
  if (!age_.defined()) {
    age_ = at::arange(config_.window - 1, -1, -1, at::device(found.grad_norm.device()).dtype(at::kDouble));
  }
  const at::Tensor before = windows.values.to(age_.device());
  const at::Tensor counts = windows.counts.to(age_.device());
  std::vector<at::Tensor> looked_at;
  if (config_.inputs) {
    looked_at.push_back(found.inputs.detach().to(at::kDouble).sqrt().clamp_max_(kLargestInput));
  }
  looked_at.push_back(found.loss.detach().to(at::kDouble));
  looked_at.push_back(found.grad_norm.detach().to(at::kDouble));
  const at::Tensor values = at::stack(looked_at);
  const at::Tensor divisors = counts.clamp_min(1);
  const at::Tensor means = before.sum(1) / divisors;
  const at::Tensor squares = (before - means.unsqueeze(1)).square_().mul_(age_ < counts.unsqueeze(1)).sum(1);
  const at::Tensor least = means.abs().clamp_min_(kLeastSpikeDeviation).mul_(kLeastSpikeDeviation);
  const at::Tensor deviations = at::maximum((squares / divisors).sqrt_(), least);
  const at::Tensor limits = means + config_.z_score * deviations;
  const at::Tensor are_finite = values.isfinite();  // FiniteWatch finds the others
  const auto fewest = static_cast<double>(std::min(static_cast<std::int64_t>(kFewestForSpikes), config_.window));
  const at::Tensor spikes = are_finite.logical_and(counts >= fewest).logical_and_(values > limits);
  const at::Tensor kept = at::where(spikes, limits, values).unsqueeze(1);
  const at::Tensor moved = at::cat({before.slice(1, 1), kept}, 1);
  windows.values = at::where(are_finite.unsqueeze(1), moved, before);
  windows.counts = (counts + are_finite).clamp_max_(config_.window);
  steps_.push_back(step);
  pending_.push_back(at::stack({values, means, (values - means) / deviations, spikes.to(at::kDouble)}));
  return spikes.any().to(at::kFloat);
}

std::vector<Spike> SpikeGate::take_skipped(const World& world) {
  std::vector<Spike> skipped;
  if (pending_.empty()) {
    return skipped;
  }
  const at::Tensor host = WorldAccess::on_host(world, at::stack(pending_));
  const double* row = host.const_data_ptr<double>();
  const std::size_t columns = names_.size();
  for (std::size_t i = 0; i < steps_.size(); ++i, row += 4 * columns) {
    const double* is_spike = row + 3 * columns;
    const auto which = static_cast<std::size_t>(std::find(is_spike, is_spike + columns, 1.0) - is_spike);
    // The inputs of a step are those of all its optimizers.
    const bool is_told = !skipped.empty() && skipped.back().step == steps_[i] && skipped.back().name == "inputs";
    if (which < columns && !is_told) {
      skipped.push_back({.step = steps_[i],
                         .name = std::string(names_[which]),
                         .value = row[which],
                         .mean = row[columns + which],
                         .z_score = row[2 * columns + which]});
    }
  }
  steps_.clear();
  pending_.clear();
  return skipped;
}

NamedTensors SpikeGate::save() const {
  NamedTensors state;
  for (std::size_t optimizer = 0; optimizer < windows_.size(); ++optimizer) {
    if (!windows_[optimizer].values.defined()) {
      continue;
    }
    const at::Tensor values = windows_[optimizer].values.cpu();
    const at::Tensor counts = windows_[optimizer].counts.cpu();
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i);
      const auto size = counts[row].item<std::int64_t>();
      state.emplace_back(fmt::format("{}.{}", optimizer, names_[i]),
                         values[row].narrow(0, config_.window - size, size).contiguous());
    }
  }
  return state;
}

void SpikeGate::load(const NamedTensors& state) {
  windows_.clear();
  for (const auto& [name, values] : state) {
    const auto parts = split(name, '.');
    const auto row = std::ranges::find(names_, parts.back()) - names_.begin();
    if (row == std::ssize(names_)) {
      continue;
    }
    Windows& windows = windows_of(static_cast<std::size_t>(parse_int(parts.front()).value_or(0)));
    const std::int64_t size = std::min(values.numel(), config_.window);
    windows.values[row].narrow(0, config_.window - size, size).copy_(values.narrow(0, values.numel() - size, size));
    windows.counts[row].fill_(static_cast<double>(size));
  }
}

}  // namespace lockstep
