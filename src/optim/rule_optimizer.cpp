#include "optim/rule_optimizer.h"

#include <map>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

const at::Tensor& identity_of(const torch::optim::OptimizerParamState& state) {
  return static_cast<const RuleState&>(state).step;
}

[[noreturn]] void throw_no_archive() {
  throw Error("this optimizer cannot be written into an archive of torch::save",
              "use the Trainer's checkpoints, or Strategy::optimizer_state()");
}

}  // namespace

at::Tensor empty_slot(const StateSlot& slot, const at::Tensor& parameter) {
  const bool is_matrix = parameter.dim() > 1;
  switch (slot.shape) {
    case StateSlot::Shape::number:
      return at::empty({}, at::kDouble);
    case StateSlot::Shape::vector:
      return is_matrix ? at::Tensor() : at::empty_like(parameter);
    case StateSlot::Shape::row_means:
    case StateSlot::Shape::col_means: {
      if (!is_matrix) {
        return {};
      }
      auto shape = parameter.sizes().vec();
      shape[shape.size() - (slot.shape == StateSlot::Shape::row_means ? 1 : 2)] = 1;
      return at::empty(shape, parameter.options().requires_grad(false));
    }
    case StateSlot::Shape::parameter:
      break;
  }
  return at::empty_like(parameter);
}

RuleState::RuleState(std::span<const StateSlot> rule_slots)
    : kinds(rule_slots), step(at::zeros({}, at::kLong)), slots(rule_slots.size()) {}

RuleOptimizer::RuleOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups, const RuleOptions& defaults,
                             std::shared_ptr<const UpdateRule> rule)
    : Optimizer(groups, std::make_unique<RuleOptions>(defaults)), rule_(std::move(rule)), gradients_(identity_of) {}

at::Tensor RuleOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  gradients_.take(*this);
  for (const GradientList& list : gradients_.lists()) {
    if (list.is_new) {
      create_states(list);
    }
    update(list);
  }
  gradients_.release();
  return loss;
}

void RuleOptimizer::create_states(const GradientList& list) {
  const double lr = param_groups_[list.group].options().get_lr();
  for (const at::Tensor& parameter : list.parameters) {
    auto state = std::make_unique<RuleState>(rule_->slots());
    for (std::size_t i = 0; i < state->slots.size(); ++i) {
      at::Tensor& tensor = state->slots[i];
      tensor = empty_slot(state->kinds[i], parameter);
      if (tensor.defined()) {
        tensor.fill_(rule_->first_value(state->kinds[i], lr));
      }
    }
    state_[parameter.unsafeGetTensorImpl()] = std::move(state);
  }
}

// The parameters of a list may have different step counts, if some of them had no gradient in an earlier step.
void RuleOptimizer::update(const GradientList& list) {
  struct Part {
    std::vector<at::Tensor> values{};
    std::vector<at::Tensor> gradients{};
    std::vector<std::vector<at::Tensor>> slots{};
  };
  std::map<std::int64_t, Part> parts;
  for (std::size_t i = 0; i < list.parameters.size(); ++i) {
    auto& state = static_cast<RuleState&>(*state_.at(list.parameters[i].unsafeGetTensorImpl()));
    Part& part = parts[++state.count()];
    part.values.push_back(list.values[i]);
    part.gradients.push_back(list.gradients[i]);
    part.slots.resize(state.slots.size());
    for (std::size_t slot = 0; slot < state.slots.size(); ++slot) {
      const at::Tensor& tensor = state.slots[slot];
      part.slots[slot].push_back(tensor.defined() ? as_real(tensor) : tensor);
    }
  }
  const auto& options = static_cast<const RuleOptions&>(param_groups_[list.group].options());
  for (auto& [step, part] : parts) {
    rule_->update({.step = step,
                   .lr = options.lr,
                   .weight_decay = options.weight_decay.value_or(0),
                   .values = part.values,
                   .gradients = part.gradients,
                   .slots = part.slots});
  }
}

void RuleOptimizer::save(torch::serialize::OutputArchive&) const { throw_no_archive(); }
void RuleOptimizer::load(torch::serialize::InputArchive&) { throw_no_archive(); }

}  // namespace lockstep
