#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/metrics/metric.h>

#include "metrics/metric_set.h"

namespace lockstep::metrics {

void Metric::reset() {
  for (State& state : states_) {
    state.value = state.initial.clone();
  }
}

void Metric::to(c10::Device device) {
  for (State& state : states_) {
    state.initial = state.initial.to(device);
    state.value = state.value.to(device);
  }
}

at::Tensor& Metric::add_state(std::string name, at::Tensor initial, StateReduction reduction) {
  const bool is_cat = reduction == StateReduction::cat;
  if ((initial.scalar_type() != at::kDouble && initial.scalar_type() != at::kLong) ||
      (is_cat && (initial.dim() == 0 || initial.size(0) != 0))) {
    throw ConfigError("metric state '" + name + "': expected float64 or int64" +
                      (is_cat ? ", and shape [0, ...] at the beginning" : ""));
  }
  if (std::ranges::find(states_, name, &State::name) != states_.end()) {
    throw ConfigError("metric state '" + name + "': found two states of this name", "give each state its own name");
  }
  at::Tensor value = initial.clone();
  return states_.emplace_back(State{std::move(name), std::move(initial), reduction, std::move(value)}).value;
}

at::Tensor& Metric::add_sum(std::string name, at::IntArrayRef shape) {
  return add_state(std::move(name), at::zeros(shape, at::kDouble), StateReduction::sum);
}

}  // namespace lockstep::metrics
