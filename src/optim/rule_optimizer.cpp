#include "optim/rule_optimizer.h"

#include <map>
#include <utility>

#include <ATen/ATen.h>

#include "optim/fp32_update.h"

namespace lockstep {
namespace {

const at::Tensor& identity_of(const torch::optim::OptimizerParamState& state) {
  return static_cast<const RuleState&>(state).step;
}

/// With at least one dimension: the product of a 0-dim float and a 0-dim double, such as a common number, is a double.
at::Tensor with_dimension(const at::Tensor& tensor) { return tensor.dim() == 0 ? tensor.view({1}) : tensor; }

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

std::vector<double> RuleState::numbers() const {
  std::vector<double> all = {step.item<double>()};
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    if (kinds[slot].shape == StateSlot::Shape::number) {
      all.push_back(slots[slot].item<double>());
    }
  }
  return all;
}

RuleOptimizer::RuleOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups, const RuleOptions& defaults)
    : ListOptimizer(groups, std::make_unique<RuleOptions>(defaults), identity_of) {}

void RuleOptimizer::update() {
  if (parts_.empty()) {
    return;
  }
  prepare_common();
  for (Part& part : parts_) {
    update_part(part);
  }
  rule_defaults().rule->finish_step(common_);
}

void RuleOptimizer::create_states(const GradientList& list) {
  const auto& options = options_of<RuleOptions>(list);
  for (const at::Tensor& parameter : list.parameters) {
    auto state = std::make_unique<RuleState>(options.rule->slots());
    for (std::size_t i = 0; i < state->slots.size(); ++i) {
      at::Tensor& tensor = state->slots[i];
      tensor = empty_slot(state->kinds[i], parameter);
      if (tensor.defined()) {
        as_real(tensor).fill_(options.rule->first_value(state->kinds[i], options.lr));
      }
    }
    state_[parameter.unsafeGetTensorImpl()] = std::move(state);
  }
}

void RuleOptimizer::lists_changed() {
  parts_.clear();
  for (std::size_t i = 0; i < lists().size(); ++i) {
    const GradientList& list = lists()[i];
    if (list.is_new) {
      create_states(list);
    }
    std::map<std::vector<double>, Part> by_numbers;
    for (std::size_t member = 0; member < list.parameters.size(); ++member) {
      auto& state = static_cast<RuleState&>(*state_.at(list.parameters[member].unsafeGetTensorImpl()));
      Part& part = by_numbers[state.numbers()];
      part.list = i;
      part.members.push_back(member);
      part.positions.push_back(list.positions[member]);
      part.states.push_back(&state);
      part.slots.resize(state.slots.size());
      for (std::size_t slot = 0; slot < state.slots.size(); ++slot) {
        const at::Tensor& tensor = state.slots[slot];
        const bool is_number = state.kinds[slot].shape == StateSlot::Shape::number;
        part.slots[slot].push_back(is_number || !tensor.defined() ? tensor : with_dimension(as_real(tensor)));
      }
    }
    for (auto& [numbers, part] : by_numbers) {
      parts_.push_back(std::move(part));
    }
  }
}

// Those of a checkpoint are on the host.
void RuleOptimizer::prepare_common() {
  const auto options = lists().front().parameters.front().options().dtype(at::kDouble).requires_grad(false);
  if (common_.empty()) {
    for (const CommonNumber& number : rule_defaults().rule->common()) {
      common_.push_back(at::full({}, number.first, options));
    }
  }
  for (at::Tensor& number : common_) {
    number = number.to(options);
  }
}

void RuleOptimizer::update_part(Part& part) {
  const GradientList& list = lists()[part.list];
  for (std::size_t i = 0; i < part.members.size(); ++i) {
    ++part.states[i]->count();
    part.values.push_back(with_dimension(list.values[part.members[i]]));
    part.gradients.push_back(with_dimension(list.gradients[part.members[i]]));
  }
  const auto& options = options_of<RuleOptions>(list);
  const auto update_tensors = [&](const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& gradients,
                                  std::vector<std::vector<at::Tensor>>& slots) {
    options.rule->update({.step = part.states.front()->count(),
                          .lr = options.lr,
                          .weight_decay = options.weight_decay.value_or(0),
                          .values = values,
                          .gradients = gradients,
                          .slots = slots,
                          .common = common_});
  };
  if (rounds(list)) {
    UpdateLists lists{part.values, part.gradients};
    lists.insert(lists.end(), part.slots.begin(), part.slots.end());
    update_in_fp32(lists, UpdateUnit::parameters, {.key = rounding_key(), .positions = part.positions},
                   [&](UpdateLists& some) {
                     std::vector<std::vector<at::Tensor>> slots(some.begin() + 2, some.end());
                     update_tensors(some[0], some[1], slots);
                   });
  } else {
    update_tensors(part.values, part.gradients, part.slots);
  }
  part.values.clear();
  part.gradients.clear();  // so that zero_grad() frees their memory
}

}  // namespace lockstep
