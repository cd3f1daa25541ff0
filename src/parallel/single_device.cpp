#include "parallel/single_device.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/world/world.h>

#include "base/mapped.h"
#include "base/text.h"
#include "optim/grad_norm.h"
#include "optim/list_optimizer.h"
#include "parallel/sync_statistics.h"
#include "tensor/replaced_values.h"
#include "tensor/stochastic_rounding.h"

namespace lockstep {

namespace {

/// The norm is a 0-dim tensor on the CPU, so its value can be read without waiting for a device.
bool is_finite_norm(const at::Tensor& norm) {
  return norm.scalar_type() == at::kDouble ? std::isfinite(*norm.const_data_ptr<double>())
                                           : std::isfinite(*norm.const_data_ptr<float>());
}

struct Parameters {
  NamedTensors trained{};
  NamedTensors frozen{};
};

// Uses the names of the task's module, so that two optimizers never use one name for two parameters.
Parameters parameters_of(torch::nn::Module& whole, const OptimizerSpec& spec) {
  std::unordered_set<const c10::TensorImpl*> wanted;
  for (const auto& parameter : (spec.module != nullptr ? *spec.module : whole).parameters()) {
    wanted.insert(parameter.unsafeGetTensorImpl());
  }
  Parameters found;
  for (const auto& item : whole.named_parameters()) {
    if (wanted.erase(item.value().unsafeGetTensorImpl()) == 1 && selects(spec, item.key(), item.value())) {
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

SingleDeviceOptimizer::SingleDeviceOptimizer(OptimizerSpec spec, SingleDevice& strategy)
    : strategy_(strategy), index_(strategy.optimizers_.size()), spec_(std::move(spec)) {
  build();
  if (strategy_.precision_ == Precision::fp16_mixed) {
    scaler_.emplace(strategy_.world_.device());
  }
}

void SingleDeviceOptimizer::build() {
  Parameters parameters = parameters_of(*strategy_.module_, spec_);
  parameters_ = std::move(parameters.trained);
  built_ = build_optimizer(spec_, parameters_, strategy_.optim_, std::move(parameters.frozen));
  built_.key = fmt::format("optimizer:{}", index_);
  needs_closure_ = is_lbfgs(*built_.optimizer);
  rounded_ = nullptr;
  const bool has_bfloat16 = std::ranges::any_of(
      parameters_, [](const auto& parameter) { return parameter.second.scalar_type() == at::kBFloat16; });
  if (strategy_.optim_.stochastic_rounding && has_bfloat16) {
    rounded_ = dynamic_cast<ListOptimizer*>(built_.optimizer.get());
    if (rounded_ == nullptr) {
      throw ConfigError(
          fmt::format("--optim.stochastic_rounding true: optimizer '{}' has bfloat16 parameters, and only optimizers "
                      "of lockstep can round their updates at random",
                      name()),
          "use a factory of lockstep, such as lockstep::adamw(), or --optim.stochastic_rounding false");
    }
  }
}

void SingleDeviceOptimizer::build_again() {
  BuiltOptimizer before = std::move(built_);
  build();
  take_over(built_, before);
  for (const auto& [name, parameter] : built_.frozen) {  // zero_grad() does not reach it any more
    parameter.mutable_grad().reset();
  }
}

// Gradients are cleared, not set to zero: the next backward then writes each gradient once instead of adding to it.
void SingleDeviceOptimizer::zero_grad() {
  for (const NamedTensors* parameters : {&parameters_, &strategy_.untrained_}) {
    for (const auto& [name, parameter] : *parameters) {
      parameter.mutable_grad().reset();
    }
  }
  grads_.clear();  // it would keep their memory until the next ones are clipped
  count_.reset();
  loss_.reset();
  inputs_.reset();
}

void SingleDeviceOptimizer::begin_forward(Gradients) { strategy_.begin_phase(Phase::forward); }

void SingleDeviceOptimizer::backward(const at::Tensor& loss, const at::Tensor& weight) {
  strategy_.begin_phase(Phase::backward);
  ran_backward_ = true;
  torch::autograd::backward({loss}, {root_gradient(loss, weight)});
}

void SingleDeviceOptimizer::add_count(const at::Tensor& count) {
  const at::NoGradGuard no_grad;
  count_ = count_.defined() ? count_ + count.detach() : count.detach().to(at::kFloat);
}

void SingleDeviceOptimizer::add_value(at::Tensor& sum, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const at::Tensor added = value.detach().to(at::kFloat);
  sum = sum.defined() ? sum + added : added;
}

at::Tensor SingleDeviceOptimizer::value_or_zero(const at::Tensor& value) const {
  return value.defined() ? value : at::zeros({}, at::device(strategy_.world_.device()).dtype(at::kFloat));
}

void SingleDeviceOptimizer::finish() {
  look_for_unused();
  unscale_grads();
  strategy_.agreed_ = strategy_.agreed_ | strategy_.take_requests();
}

// With several ranks check_all_used() has looked at each step, unless the graph is static. With one rank a loss may use
// other parts later, so this only says what the first step shows.
void SingleDeviceOptimizer::look_for_unused() {
  if (!ran_backward_ || std::exchange(looked_for_unused_, true) || strategy_.dist_.find_unused_parameters) {
    return;
  }
  const std::vector<std::string> unused = without_gradient();
  if (unused.empty()) {
    return;
  }
  if (unused.size() == parameters_.size()) {
    throw Error(fmt::format("{}; they are all that optimizer '{}' trains", text_about(unused), name()),
                "Task::module() must return the module with which the task calculates its loss, and nothing may clear "
                "gradients between the backward and the update; if a step may use none of them, set "
                "--dist.find_unused_parameters true");
  }
  if (strategy_.world_.size() == 1) {
    log_warning(fmt::format("{}; with several ranks this is an error: {}", text_about(unused), kUnusedHint));
  }
}

std::vector<std::string> SingleDeviceOptimizer::without_gradient() const {
  std::vector<std::string> names;
  for (const auto& [name, parameter] : parameters_) {
    if (!parameter.grad().defined()) {
      names.push_back(name);
    }
  }
  return names;
}

std::string SingleDeviceOptimizer::text_about(const std::vector<std::string>& without_gradient) const {
  return fmt::format("{} of {} parameters got no gradient on rank {}: {}", without_gradient.size(), parameters_.size(),
                     strategy_.world_.rank(), join_first(without_gradient, 10));
}

void SingleDeviceOptimizer::unscale_grads() {
  not_finite_.reset();
  if (scaler_) {
    scaler_->unscale(defined_grads());
  }
}

/// Dense real tensors that share memory with the gradients, for the norm and for scaling.
const std::vector<at::Tensor>& SingleDeviceOptimizer::defined_grads() {
  grads_.clear();
  for (auto& group : built_.optimizer->param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      add_grad(parameter.mutable_grad());
    }
  }
  return grads_;
}

void SingleDeviceOptimizer::add_grad(at::Tensor& gradient) {
  if (!gradient.defined()) {
    return;
  }
  if (gradient.is_sparse()) {
    gradient = gradient.coalesce();  // adds duplicate rows, as the norm requires
  } else if (gradient.is_conj()) {
    gradient = gradient.resolve_conj();
  }
  const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  grads_.push_back(values.is_complex() ? at::view_as_real(values) : values);
}

// The factory may have divided a group; its parts have one norm.
void SingleDeviceOptimizer::clip_groups() {
  for (std::size_t given = 0; given < spec_.groups.size(); ++given) {
    const double limit = spec_.groups[given].max_grad_norm;
    if (limit <= 0) {
      continue;
    }
    grads_.clear();
    auto& groups = built_.optimizer->param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (built_.given[i] == given) {
        for (at::Tensor& parameter : groups[i].params()) {
          add_grad(parameter.mutable_grad());
        }
      }
    }
    scale_(grads_, clip_factor(global_norm(grads_, strategy_.world_.device()), limit));
  }
}

at::Tensor SingleDeviceOptimizer::grad_norm() {
  at::Tensor norm = global_norm(defined_grads(), strategy_.world_.device());
  note_norm(norm);
  return norm;
}

// A finite norm says that all gradients are finite. One that is not finite says nothing, because squares may overflow,
// and on a GPU reading it would wait.
void SingleDeviceOptimizer::note_norm(const at::Tensor& norm) {
  if (skips_not_finite() && norm.is_cpu()) {
    if (!is_finite_norm(norm)) {
      not_finite_.reset();  // a callback may have changed the gradients since an earlier norm
    } else if (!not_finite_.defined()) {
      not_finite_ = at::zeros({}, at::kFloat);
    }
  }
}

// Unless the norm of this step has already given the answer.
void SingleDeviceOptimizer::look_for_not_finite() {
  if (!skips_not_finite() || not_finite_.defined()) {
    return;
  }
  if (strategy_.world_.device().is_cpu()) {
    note_norm(global_norm(defined_grads(), strategy_.world_.device()));  // only reads
  }
  if (!not_finite_.defined()) {
    not_finite_ = any_not_finite(defined_grads(), strategy_.world_.device());
  }
}

bool SingleDeviceOptimizer::skips_not_finite() const {
  return !scaler_ && strategy_.optim_.non_finite == NonFinitePolicy::skip;
}

void SingleDeviceOptimizer::scale_grads(const at::Tensor& factor) { scale_(defined_grads(), factor); }

void SingleDeviceOptimizer::clamp_grads(double limit) {
  look_for_not_finite();  // it makes infinity finite
  clamp_(defined_grads(), limit);
}

// The numbers depend on the seed and on the place of an update in the run alone, so a resumed run has the same.
void SingleDeviceOptimizer::begin_rounding() {
  if (rounded_ == nullptr) {
    return;
  }
  updates_ = std::exchange(rounded_step_, strategy_.step_) == strategy_.step_ ? updates_ + 1 : 0;
  constexpr std::uint64_t kUpdate = ~std::uint64_t{0};  // no rank, see CompressionHook::key
  rounded_->round_next(rounding_key(
      strategy_.seed_, {static_cast<std::uint64_t>(strategy_.step_), std::uint64_t{index_}, updates_, kUpdate}));
}

void SingleDeviceOptimizer::step() {
  if (needs_closure_) {
    throw Error(fmt::format("optimizer '{}' is LBFGS, which needs a closure that evaluates the loss", name()),
                "override Task::optimize and call Step::optimizer().minimize() there, see docs/training.md");
  }
  strategy_.begin_phase(Phase::optimizer);
  begin_rounding();
  const at::Tensor skip = std::exchange(skip_, {});
  if (scaler_) {
    scaler_->step(*built_.optimizer, skip);
    return;
  }
  look_for_not_finite();
  step_unless(any_of(not_finite_, skip), *built_.optimizer);
}

// Parameter names hold no colon. Optimizers may have the same name.
std::string SingleDeviceOptimizer::scaler_key() const { return fmt::format("loss_scaler:{}", index_); }

NamedTensors SingleDeviceOptimizer::state() const {
  NamedTensors state = optimizer_state(built_);
  if (scaler_) {
    const NamedTensors scaler = scaler_->state(scaler_key());
    state.insert(state.end(), scaler.begin(), scaler.end());
  }
  return state;
}

// "<parameter>.<state>": an entry belongs to the optimizer of that parameter. Rates belong to groups, so each rank
// reads them for all parameters.
void SingleDeviceOptimizer::load_state(const NamedTensors& state) {
  std::unordered_set<std::string> mine{built_.key};
  for (const NamedTensors* parameters : {&parameters_, &built_.frozen}) {
    for (const auto& [name, parameter] : *parameters) {
      mine.insert(name);
    }
  }
  NamedTensors part;
  std::copy_if(state.begin(), state.end(), std::back_inserter(part), [&](const auto& entry) {
    const std::string parameter = entry.first.substr(0, entry.first.rfind('.'));
    return mine.contains(parameter) && (!built_.elsewhere.contains(parameter) || is_rate(entry.first));
  });
  load_optimizer_state(built_, part);
  if (scaler_) {
    scaler_->load_state(scaler_key(), state);
  }
}

void SingleDevice::prepare(torch::nn::Module& module, std::span<const OptimizerSpec> optimizers) {
  if (optimizers.empty()) {
    throw ConfigError("the task has no optimizer", "return one from Task::optimizers(), e.g. {adamw({.lr = 1e-3})}");
  }
  check_schedules(schedules_of(optimizers, optim_));
  if (dist_.require_sync_batch_norm) {
    refuse_plain_batch_norm(module);
  }
  module_ = &module;
  optimizers_.clear();
  untrained_.clear();
  for (const auto& spec : optimizers) {
    optimizers_.push_back(make_optimizer(spec));
  }
  check_that_something_trains();
  check_rounding();
  look_at_owners();
}

void SingleDevice::look_at_owners() {
  std::unordered_map<const c10::TensorImpl*, std::size_t> owners;
  for (std::size_t number = 0; number < optimizers_.size(); ++number) {
    for (const auto& [name, parameter] : optimizers_[number]->parameters()) {
      const auto [owner, is_new] = owners.emplace(parameter.unsafeGetTensorImpl(), number);
      if (!is_new) {
        throw ConfigError(
            fmt::format("optimizer {} ('{}') and optimizer {} ('{}') both have the parameter {}", owner->second,
                        optimizers_[owner->second]->name(), number, optimizers_[number]->name(), name),
            "select each parameter for one optimizer, by OptimizerSpec::module or groups; for two losses use one "
            "optimizer and both losses in a step; for one optimizer after another, train twice, see docs/recipes.md");
      }
    }
  }
  const std::vector<std::string> before = mapped(untrained_, &NamedTensors::value_type::first);
  for (const auto& [name, parameter] : std::exchange(untrained_, {})) {
    parameter.mutable_grad().reset();  // it may be frozen now, and nothing would clear it again
  }
  for (const auto& item : module_->named_parameters()) {
    if (item.value().requires_grad() && owners.emplace(item.value().unsafeGetTensorImpl(), optimizers_.size()).second) {
      untrained_.emplace_back(item.key(), item.value());
    }
  }
  const std::vector<std::string> names = mapped(untrained_, &NamedTensors::value_type::first);
  const auto is_told = [&](const std::string& name) { return std::ranges::find(before, name) != before.end(); };
  if (!std::ranges::all_of(names, is_told) && log_rank() == 0) {  // every rank finds the same
    log_warning(
        fmt::format("no optimizer trains {} of {} parameters: {}; select them by OptimizerSpec::module or "
                    "groups, or freeze them (requires_grad_(false))",
                    names.size(), owners.size(), join_first(names, 10)));
  }
}

void SingleDevice::prepare_again() {
  for (const auto& optimizer : optimizers_) {
    optimizer->build_again();
  }
  check_that_something_trains();
  look_at_owners();
}

std::unique_ptr<SingleDeviceOptimizer> SingleDevice::make_optimizer(const OptimizerSpec& spec) {
  return std::make_unique<SingleDeviceOptimizer>(spec, *this);
}

void SingleDevice::check_that_something_trains() const {
  if (std::none_of(optimizers_.begin(), optimizers_.end(),
                   [](const auto& optimizer) { return !optimizer->parameters().empty(); })) {
    throw ConfigError("no parameter of any optimizer requires gradients, expected at least one",
                      "keep requires_grad of the parameters that you want to train");
  }
}

void SingleDevice::check_rounding() const {
  if (optim_.stochastic_rounding &&
      std::ranges::none_of(optimizers_, [](const auto& optimizer) { return optimizer->rounds(); })) {
    throw ConfigError("--optim.stochastic_rounding true: no bfloat16 parameter is trained",
                      "use --precision bf16, or leave it out");
  }
}

// In a loop by hand nobody else tells the supervisor how far the training is.
void SingleDevice::begin_step(std::int64_t number, StepRequests mine) {
  mine_ = mine_ | mine;
  agreed_ = {};
  step_ = number;
  if (progress_.in_fit) {
    return;
  }
  if (std::exchange(has_noted_steps_, true)) {
    progress_.set_step(number);
  } else {
    progress_.begin_fit(number);
  }
  leave_phase();
}

StepRequests SingleDevice::agreed() {
  end_step();
  return agreed_;
}

NamedTensors SingleDevice::optimizer_state() const {
  NamedTensors state;
  for (const auto& optimizer : optimizers_) {
    NamedTensors part = optimizer->state();
    std::move(part.begin(), part.end(), std::back_inserter(state));
  }
  return state;
}

void SingleDevice::load_optimizer_state(const NamedTensors& state) {
  for (const auto& optimizer : optimizers_) {
    optimizer->load_state(state);
  }
}

std::vector<std::pair<at::Tensor, at::Tensor>> SingleDevice::evaluated_parameters() const {
  std::unordered_map<std::string, at::Tensor> values;
  for (const auto& optimizer : optimizers_) {
    for (auto& [name, value] : optimizer->evaluation_values()) {
      values.emplace(name, std::move(value));
    }
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> found;
  for (const auto& item : module_->named_parameters()) {
    if (const auto value = values.find(item.key()); value != values.end()) {
      found.emplace_back(item.value(), value->second);
    }
  }
  return found;
}

std::shared_ptr<void> SingleDevice::evaluation_scope() {
  if (auto running = evaluating_.lock()) {
    return running;  // a validation inside of another one: the parameters have these values already
  }
  if (has_kept_evaluation_values_) {
    return nullptr;
  }
  const auto others = evaluated_parameters();
  if (others.empty()) {
    return nullptr;
  }
  auto scope = std::make_shared<ReplacedValues>(others);
  evaluating_ = scope;
  return scope;
}

void SingleDevice::keep_evaluation_values() {
  has_kept_evaluation_values_ = true;
  const at::NoGradGuard no_grad;
  for (const auto& [parameter, value] : evaluated_parameters()) {
    parameter.copy_(value);
  }
}

}  // namespace lockstep
