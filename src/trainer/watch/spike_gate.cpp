#include "trainer/watch/spike_gate.h"

#include <algorithm>
#include <cmath>

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
  return found.loss.is_cpu() && found.grad_norm.is_cpu() ? check_on_host(step, optimizer, found)
                                                         : check_by_operations(step, optimizer, found);
}

at::Tensor SpikeGate::check_on_host(std::int64_t step, std::size_t optimizer, const Values& found) {
  const c10::NoGradGuard no_grad;
  const Windows& windows = windows_of(optimizer);
  const std::size_t rows = names_.size();
  const auto size = static_cast<std::size_t>(config_.window);
  auto* const kept = windows.values.mutable_data_ptr<double>();
  auto* const counts = windows.counts.mutable_data_ptr<double>();
  const at::Tensor judged = at::empty({4, std::ssize(names_)}, at::kDouble);
  auto* const values = judged.mutable_data_ptr<double>();
  auto* const means = values + rows;
  auto* const z_scores = means + rows;
  auto* const spikes = z_scores + rows;
  // Sums and roots are operations: those of the standard library have other last bits.
  if (config_.inputs) {
    const auto root = found.inputs.detach().to(at::kDouble).sqrt().item<double>();
    values[0] = root > kLargestInput ? kLargestInput : root;  // NaN stays
  }
  values[rows - 2] = found.loss.item<double>();
  values[rows - 1] = found.grad_norm.item<double>();
  const at::Tensor sums = windows.values.sum(1);
  const at::Tensor squares = at::zeros_like(windows.values);
  auto* const squared = squares.mutable_data_ptr<double>();
  for (std::size_t i = 0; i < rows; ++i) {
    means[i] = sums.const_data_ptr<double>()[i] / std::max(counts[i], 1.0);
    for (std::size_t place = size - static_cast<std::size_t>(counts[i]); place < size; ++place) {
      const double difference = kept[i * size + place] - means[i];
      squared[i * size + place] = difference * difference;
    }
  }
  const at::Tensor deviations = squares.sum(1).div_(windows.counts.clamp_min(1)).sqrt_();
  bool is_any = false;
  for (std::size_t i = 0; i < rows; ++i) {
    const double deviation = std::max(deviations.const_data_ptr<double>()[i],
                                      std::max(std::abs(means[i]), kLeastSpikeDeviation) * kLeastSpikeDeviation);
    const double limit = means[i] + config_.z_score * deviation;
    const bool is_finite = std::isfinite(values[i]);  // FiniteWatch finds the others
    const bool is_spike = is_finite && counts[i] >= fewest() && values[i] > limit;
    z_scores[i] = (values[i] - means[i]) / deviation;
    spikes[i] = is_spike ? 1 : 0;
    is_any = is_any || is_spike;
    if (is_finite) {
      double* const row = kept + i * size;
      std::copy(row + 1, row + size, row);
      row[size - 1] = is_spike ? limit : values[i];
      counts[i] = std::min(counts[i] + 1, static_cast<double>(size));
    }
  }
  steps_.push_back(step);
  pending_.push_back(judged);
  return at::scalar_tensor(is_any ? 1 : 0, at::kFloat);
}

at::Tensor SpikeGate::check_by_operations(std::int64_t step, std::size_t optimizer, const Values& found) {
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
  const at::Tensor spikes = are_finite.logical_and(counts >= fewest()).logical_and_(values > limits);
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
                         values[row].narrow(0, config_.window - size, size).clone());
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
