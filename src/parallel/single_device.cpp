#include "parallel/single_device.h"

#include <algorithm>
#include <unordered_set>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <lockstep/base/error.h>

#include "optim/grad_norm.h"

namespace lockstep {

namespace {

struct Parameters {
  NamedTensors trained{};
  NamedTensors frozen{};
};

// Names are the task module's, so that two optimizers never use one name for two parameters.
Parameters parameters_of(torch::nn::Module& whole, const OptimizerSpec& spec) {
  std::unordered_set<const c10::TensorImpl*> wanted;
  for (const auto& parameter : (spec.module != nullptr ? *spec.module : whole).parameters()) {
    wanted.insert(parameter.unsafeGetTensorImpl());
  }
  Parameters found;
  for (const auto& item : whole.named_parameters()) {
    if (wanted.erase(item.value().unsafeGetTensorImpl()) == 1) {
      (item.value().requires_grad() ? found.trained : found.frozen).emplace_back(item.key(), item.value());
    }
  }
  if (!wanted.empty()) {
    throw ConfigError(fmt::format("optimizer '{}': {} of its module's parameters do not belong to the task's module",
                                  spec.name, wanted.size()),
                      "OptimizerSpec::module is the module that Task::module() returns, or a registered part of it");
  }
  return found;
}

}  // namespace

void SingleDevice::prepare(torch::nn::Module& module, std::span<const OptimizerSpec> optimizers) {
  if (optimizers.empty()) {
    throw ConfigError("the task has no optimizer", "return one from Task::optimizers(), e.g. {adamw({.lr = 1e-3})}");
  }
  module_ = &module;
  sets_.clear();
  for (const auto& spec : optimizers) {
    Set& set = sets_.emplace_back();
    set.spec = spec;
    build(set);
  }
  check_that_something_trains();
}

void SingleDevice::prepare_again() {
  for (Set& set : sets_) {
    BuiltOptimizer before = std::move(set.built);
    build(set);
    take_over(set.built, before);
  }
  check_that_something_trains();
}

void SingleDevice::build(Set& set) {
  Parameters parameters = parameters_of(*module_, set.spec);
  set.parameters = std::move(parameters.trained);
  set.built = build_optimizer(set.spec, set.parameters, lr_, std::move(parameters.frozen));
}

void SingleDevice::check_that_something_trains() const {
  if (std::all_of(sets_.begin(), sets_.end(), [](const Set& set) { return set.parameters.empty(); })) {
    throw ConfigError("no parameter of any optimizer requires gradients, expected at least one",
                      "leave requires_grad of what is to be trained as it is");
  }
}

void SingleDevice::begin_step(ControlLane mine) {
  mine_ = mine_ | mine;
  agreed_ = {};
}

void SingleDevice::begin_forward(bool, std::size_t) { progress_.set_phase(Phase::forward); }

void SingleDevice::backward(const at::Tensor& loss, const at::Tensor& weight, std::size_t) {
  progress_.set_phase(Phase::backward);
  torch::autograd::backward({loss}, {weight});
}

void SingleDevice::backward_nothing(std::size_t) {}

void SingleDevice::finish(std::size_t) { agreed_ = agreed_ | take_requests(); }

// Dropped rather than filled with zeros: the next backward then writes each gradient once instead of adding to it.
void SingleDevice::zero_grad(std::size_t set) {
  for (auto& [name, parameter] : sets_.at(set).parameters) {
    parameter.mutable_grad().reset();
  }
  sets_[set].count.reset();
}

const std::vector<at::Tensor>& SingleDevice::defined_grads(Set& set) {
  set.grads.clear();
  for (auto& [name, parameter] : set.parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) {
      continue;
    }
    if (gradient.is_sparse()) {
      gradient = gradient.coalesce();  // a row that is there twice is one number of the norm
    } else if (gradient.is_conj()) {
      gradient = gradient.resolve_conj();
    }
    const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
    set.grads.push_back(values.is_complex() ? at::view_as_real(values) : values);
  }
  return set.grads;
}

at::Tensor SingleDevice::grad_norm(std::size_t set) { return global_norm(defined_grads(sets_.at(set))); }

void SingleDevice::scale_grads(const at::Tensor& factor, std::size_t set) {
  scale_(defined_grads(sets_.at(set)), factor);
}

void SingleDevice::set_lr_factor(double factor, std::size_t set) {
  lockstep::set_lr_factor(sets_.at(set).built, factor);
}

double SingleDevice::lr(std::size_t set) const {
  return sets_.at(set).built.optimizer->param_groups().front().options().get_lr();
}

void SingleDevice::step(std::size_t set) {
  progress_.set_phase(Phase::optimizer);
  sets_.at(set).built.optimizer->step();
}

torch::optim::Optimizer& SingleDevice::optimizer(std::size_t set) { return *sets_.at(set).built.optimizer; }

NamedTensors SingleDevice::optimizer_state() const {
  NamedTensors state;
  for (const auto& set : sets_) {
    auto part = lockstep::optimizer_state(set.built);
    std::move(part.begin(), part.end(), std::back_inserter(state));
  }
  return state;
}

// "<parameter>.<state>": each entry belongs to the optimizer that has the parameter.
void SingleDevice::load_optimizer_state(const NamedTensors& state) {
  for (auto& set : sets_) {
    std::unordered_set<std::string> mine;
    for (const NamedTensors* parameters : {&set.parameters, &set.built.frozen}) {
      for (const auto& [name, parameter] : *parameters) {
        mine.insert(name);
      }
    }
    NamedTensors part;
    for (const auto& entry : state) {
      if (mine.contains(entry.first.substr(0, entry.first.rfind('.')))) {
        part.push_back(entry);
      }
    }
    lockstep::load_optimizer_state(set.built, part);
  }
}

void SingleDevice::add_count(const at::Tensor& count, std::size_t set) {
  const at::NoGradGuard no_grad;
  auto& total = sets_.at(set).count;
  total = total.defined() ? total + count.detach() : count.detach().to(at::kFloat);
}

at::Tensor SingleDevice::mean_count(std::size_t set) { return sets_.at(set).count; }

}  // namespace lockstep
