#include "trainer/watch/spike_watch.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "tensor/prefixed.h"
#include "trainer/times_count.h"
#include "world/gather_values.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

constexpr std::string_view kSkip = "skip.";       // windows of SpikeGate
constexpr std::string_view kLowers = "lower_lr";  // present if the next report lowers the learning rates: the spike

/// Step, rank or -1, sample ids.
at::Tensor tensor_of(const Spike& spike) {
  std::vector<std::int64_t> numbers{spike.step, spike.rank.value_or(-1)};
  numbers.insert(numbers.end(), spike.ids.begin(), spike.ids.end());
  return at::tensor(numbers, at::kLong);
}

/// A checkpoint can hold a single number instead, which names no spike: a step of -1.
Spike spike_of(const at::Tensor& saved) {
  if (saved.numel() < 2) {
    return {.step = -1};
  }
  const at::Tensor numbers = saved.flatten().to(at::kLong);
  const auto* const number = numbers.const_data_ptr<std::int64_t>();
  Spike spike{.step = number[0]};
  if (number[1] >= 0) {
    spike.rank = static_cast<int>(number[1]);
  }
  spike.ids.assign(number + 2, number + numbers.numel());
  return spike;
}

}  // namespace

double SpikeWatch::Window::mean() const {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::optional<double> SpikeWatch::Window::add(double value, const SpikeConfig& config) {
  if (!std::isfinite(value)) {
    return std::nullopt;  // FiniteWatch finds it
  }
  std::optional<double> found;
  if (values.size() >= std::min(kFewestForSpikes, static_cast<std::size_t>(config.window))) {
    const double average = mean();
    const double squares = std::accumulate(values.begin(), values.end(), 0.0,
                                           [&](double sum, double x) { return sum + (x - average) * (x - average); });
    const double deviation = std::max(std::sqrt(squares / static_cast<double>(values.size())),
                                      kLeastSpikeDeviation * std::max(std::abs(average), kLeastSpikeDeviation));
    if (const double z = (value - average) / deviation; z > config.z_score) {
      found = z;
      value = average + config.z_score * deviation;
    }
  }
  values.push_back(value);
  if (std::ssize(values) > config.window) {
    values.pop_front();
  }
  return found;
}

void SpikeWatch::add(std::int64_t step, const StepResult& result, const StepBatches& batches) {
  if (config_.z_score == 0) {
    return;
  }
  if (ids_.empty()) {
    begin_ = step;
  }
  std::vector<std::int64_t>& ids = ids_.emplace_back();
  for (const Batch& batch : batches.micro) {
    ids.insert(ids.end(), batch.ids.begin(), batch.ids.end());
  }
  own_losses_.push_back(result.loss.defined() ? result.loss.detach() : at::Tensor());
  if (gate_) {  // has seen the values before the update
    return;
  }
  const c10::NoGradGuard no_grad;
  const bool counted = result.count.defined();
  losses_.push_back(counted                 ? times_count(result.loss, result.count)
                    : result.loss.defined() ? result.loss.detach().to(at::kDouble) * batches.local_samples
                                            : at::Tensor());
  counts_.push_back(counted ? result.count.detach().to(at::kDouble) : at::Tensor());
  samples_.push_back(counted || !result.loss.defined() ? 0.0 : static_cast<double>(batches.local_samples));
  norms_.push_back(result.grad_norm.defined() ? result.grad_norm.detach().to(at::kDouble) : at::Tensor());
  if (config_.inputs) {
    inputs_.push_back(result.inputs.defined() ? result.inputs * static_cast<double>(batches.local_samples)
                                              : at::Tensor());
    all_samples_.push_back(static_cast<double>(batches.global_samples));
  }
}

std::optional<Spike> SpikeWatch::look(World& world) {
  skipped_.clear();
  std::optional<Spike> first;
  if (gate_) {
    skipped_ = gate_->take_skipped(world);
  } else if (!losses_.empty()) {
    first = first_spike(world);
  }
  std::vector<Spike*> found;
  if (first) {
    found.push_back(&*first);
  }
  std::ranges::transform(skipped_, std::back_inserter(found), [](Spike& spike) { return &spike; });
  name_ranks(found, world);
  name_samples(found, world);
  ids_.clear();
  own_losses_.clear();
  losses_.clear();
  counts_.clear();
  norms_.clear();
  samples_.clear();
  inputs_.clear();
  all_samples_.clear();
  return first;
}

std::optional<Spike> SpikeWatch::first_spike(World& world) {
  const c10::NoGradGuard no_grad;
  const at::Tensor zero = at::zeros({}, at::device(world.device()).dtype(at::kDouble));
  const auto stacked = [&](std::vector<at::Tensor> values) {
    for (at::Tensor& value : values) {
      value = value.defined() ? value : zero;
    }
    return at::stack(values);
  };
  const at::Tensor weights = stacked(counts_) + at::tensor(samples_, at::kDouble).to(world.device());
  std::vector<at::Tensor> rows{stacked(losses_), weights};
  if (config_.inputs) {
    rows.push_back(stacked(inputs_));
  }
  const at::Tensor sums = at::stack(rows);
  world.all_reduce(sums, Reduce::sum);
  // The norm is that of the reduced gradients, so every rank has the same.
  const at::Tensor host = WorldAccess::on_host(world, at::cat({sums, stacked(norms_).unsqueeze(0)}));
  const double* loss = host.const_data_ptr<double>();
  const double* weight = loss + losses_.size();
  const double* inputs = weight + losses_.size();  // with spike.inputs
  const double* norm = loss + rows.size() * losses_.size();
  std::optional<Spike> first;
  const auto check = [&](std::string_view name, double value, std::size_t i) {
    Window& window = windows_[name];
    const double mean = window.values.empty() ? 0 : window.mean();
    if (const auto z = window.add(value, config_); z && !first) {
      first = Spike{.step = begin_ + static_cast<std::int64_t>(i),
                    .name = std::string(name),
                    .value = value,
                    .mean = mean,
                    .z_score = *z};
    }
  };
  for (std::size_t i = 0; i < losses_.size(); ++i) {
    if (config_.inputs) {
      check("inputs", std::min(std::sqrt(inputs[i] / all_samples_[i]), kLargestInput), i);  // NaN stays
    }
    check("loss", loss[i] / weight[i], i);
    if (norms_[i].defined()) {  // on all ranks or on none
      check("grad_norm", norm[i], i);
    }
  }
  return first;
}

bool SpikeWatch::is_above_limit(const Spike& spike) const {
  const at::Tensor& own = own_losses_[static_cast<std::size_t>(spike.step - begin_)];
  if (spike.name != "loss" || !own.defined()) {
    return false;
  }
  return own.item<double>() > spike.mean + config_.z_score * (spike.value - spike.mean) / spike.z_score;
}

// The loss that a task reports can be another one than that of its second optimizer.
void SpikeWatch::name_ranks(const std::vector<Spike*>& spikes, World& world) const {
  if (spikes.empty() || world.size() == 1 || (gate_ && !has_one_optimizer_)) {
    return;
  }
  std::string mine;  // a letter per spike
  for (const Spike* spike : spikes) {
    mine += is_above_limit(*spike) ? 'y' : 'n';
  }
  const std::vector<std::string> answers = world.gather(mine);
  for (std::size_t i = 0; i < spikes.size(); ++i) {
    const auto is_above = [i](const std::string& of_rank) { return of_rank[i] == 'y'; };
    if (std::ranges::count_if(answers, is_above) == 1) {
      spikes[i]->rank = static_cast<int>(std::ranges::find_if(answers, is_above) - answers.begin());
    }
  }
}

void SpikeWatch::name_samples(const std::vector<Spike*>& spikes, World& world) const {
  if (spikes.empty()) {
    return;
  }
  struct Sample {
    std::size_t spike;
    std::int64_t id;
  };
  std::vector<Sample> mine;
  for (std::size_t i = 0; i < spikes.size(); ++i) {
    for (const std::int64_t id : ids_[static_cast<std::size_t>(spikes[i]->step - begin_)]) {
      mine.push_back({i, id});
    }
  }
  for (const std::vector<Sample>& of_rank : gather_values(world, mine)) {
    for (const Sample& sample : of_rank) {
      spikes[sample.spike]->ids.push_back(sample.id);
    }
  }
}

NamedTensors SpikeWatch::save() const {
  NamedTensors state;
  for (const auto& [name, window] : windows_) {
    if (!window.values.empty()) {
      state.emplace_back(name,
                         at::tensor(std::vector<double>(window.values.begin(), window.values.end()), at::kDouble));
    }
  }
  if (lowers_) {
    state.emplace_back(std::string(kLowers), tensor_of(*lowers_));
  }
  if (gate_) {
    append_with_prefix(state, kSkip, gate_->save());
  }
  return state;
}

void SpikeWatch::load(const NamedTensors& state) {
  for (const auto& [name, values] : state) {
    if (name == kLowers) {
      if (config_.policy == SpikePolicy::lower_lr) {
        lowers_ = spike_of(values);
      }
      continue;
    }
    const auto names = spike_names(config_);
    const auto known = std::ranges::find(names, name);
    if (known == names.end()) {
      continue;
    }
    Window& window = windows_[*known];
    const double* value = values.const_data_ptr<double>();
    const std::int64_t size = std::min(values.numel(), config_.window);
    window.values.assign(value + values.numel() - size, value + values.numel());
  }
  if (gate_) {
    gate_->load(under_prefix(state, kSkip));
  }
}

}  // namespace lockstep
