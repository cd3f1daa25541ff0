#include "trainer/spike_watch.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "world/world_access.h"

namespace lockstep {
namespace {

constexpr std::size_t kFewest = 10;       // values from which a standard deviation says something
constexpr double kLeastDeviation = 1e-6;  // relative to the mean

}  // namespace

std::string Spike::text() const {
  return fmt::format(
      "the {} of step {} is {:.5g}, {:.1f} standard deviations above the mean of the steps before, {:.5g}",
      name == "loss" ? "loss" : "gradient norm", step, value, z_score, mean);
}

double SpikeWatch::Window::mean() const {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::optional<double> SpikeWatch::Window::add(double value, const SpikeConfig& config) {
  if (!std::isfinite(value)) {
    return std::nullopt;  // FiniteWatch finds it
  }
  std::optional<double> found;
  if (values.size() >= std::min(kFewest, static_cast<std::size_t>(config.window))) {
    const double average = mean();
    const double squares = std::accumulate(values.begin(), values.end(), 0.0,
                                           [&](double sum, double x) { return sum + (x - average) * (x - average); });
    const double deviation = std::max(std::sqrt(squares / static_cast<double>(values.size())),
                                      kLeastDeviation * std::max(std::abs(average), kLeastDeviation));
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
  const c10::NoGradGuard no_grad;
  if (losses_.empty()) {
    begin_ = step;
  }
  losses_.push_back(result.loss.defined() ? result.loss.detach().to(at::kDouble) * batches.local_samples
                                          : at::Tensor());
  norms_.push_back(result.grad_norm.defined() ? result.grad_norm.detach().to(at::kDouble) : at::Tensor());
  samples_.push_back(static_cast<double>(batches.global_samples));
  std::vector<std::int64_t>& ids = ids_.emplace_back();
  for (const Batch& batch : batches.micro) {
    ids.insert(ids.end(), batch.ids.begin(), batch.ids.end());
  }
}

std::optional<Spike> SpikeWatch::look(World& world) {
  if (losses_.empty()) {
    return std::nullopt;
  }
  const c10::NoGradGuard no_grad;
  const at::Tensor zero = at::zeros({}, at::device(world.device()).dtype(at::kDouble));
  const auto stacked = [&](std::vector<at::Tensor>& values) {
    for (at::Tensor& value : values) {
      value = value.defined() ? value : zero;
    }
    return at::stack(values);
  };
  const bool has_norms = norms_.front().defined();
  const at::Tensor losses = stacked(losses_);
  world.all_reduce(losses, Reduce::sum);
  // The norm is that of the reduced gradients, so every rank has the same.
  const at::Tensor host = WorldAccess::on_host(world, at::stack({losses, stacked(norms_)}));
  const double* loss = host.const_data_ptr<double>();
  const double* norm = loss + losses_.size();
  std::optional<Spike> first;
  const auto check = [&](Window& window, const char* name, double value, std::size_t i) {
    const double mean = window.values.empty() ? 0 : window.mean();
    if (const auto z = window.add(value, config_); z && !first) {
      first = Spike{
          .step = begin_ + static_cast<std::int64_t>(i), .name = name, .value = value, .mean = mean, .z_score = *z};
    }
  };
  for (std::size_t i = 0; i < losses_.size(); ++i) {
    check(loss_, "loss", loss[i] / samples_[i], i);
    if (has_norms) {
      check(grad_norm_, "grad_norm", norm[i], i);
    }
  }
  if (first) {
    const std::vector<std::int64_t>& mine = ids_[static_cast<std::size_t>(first->step - begin_)];
    for (const std::string& of_rank : world.gather(fmt::format("{}", fmt::join(mine, " ")))) {
      std::istringstream words(of_rank);
      std::copy(std::istream_iterator<std::int64_t>(words), {}, std::back_inserter(first->ids));
    }
  }
  losses_.clear();
  norms_.clear();
  samples_.clear();
  ids_.clear();
  return first;
}

NamedTensors SpikeWatch::save() const {
  NamedTensors state;
  for (const auto& [name, window] : {std::pair("loss", &loss_), std::pair("grad_norm", &grad_norm_)}) {
    if (!window->values.empty()) {
      state.emplace_back(name,
                         at::tensor(std::vector<double>(window->values.begin(), window->values.end()), at::kDouble));
    }
  }
  return state;
}

void SpikeWatch::load(const NamedTensors& state) {
  for (const auto& [name, values] : state) {
    Window& window = name == "loss" ? loss_ : grad_norm_;
    const double* value = values.const_data_ptr<double>();
    const std::int64_t size = std::min(values.numel(), config_.window);
    window.values.assign(value + values.numel() - size, value + values.numel());
  }
}

}  // namespace lockstep
