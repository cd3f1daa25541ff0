#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <lockstep/base/error.h>

#include "optim/fused_adamw.h"
#include "optim/fused_sgd.h"
#include "optim/lbfgs_state.h"
#include "optim/list_optimizer.h"
#include "optim/param_groups.h"
#include "optim/rule_optimizer.h"
#include "optim/state_fields.h"

namespace lockstep {
namespace {

// The fields of each state in the order of the file: visit(name, field, required).

template <class Visit>
void visit_fields(FusedAdamWState& state, const torch::optim::AdamWOptions& options, const Visit& visit) {
  visit("step", CounterField{state.step}, true);
  visit("exp_avg", state.exp_avg, true);
  visit("exp_avg_sq", state.exp_avg_sq, true);
  visit("max_exp_avg_sq", state.max_exp_avg_sq, options.amsgrad());
}

template <class State, class Options, class Visit>
requires std::is_same_v<State, torch::optim::AdamWParamState> || std::is_same_v<State, torch::optim::AdamParamState>
void visit_fields(State& state, const Options& options, const Visit& visit) {
  visit("step", state.step(), true);
  visit("exp_avg", state.exp_avg(), true);
  visit("exp_avg_sq", state.exp_avg_sq(), true);
  visit("max_exp_avg_sq", state.max_exp_avg_sq(), options.amsgrad());
}

template <class Visit>
void visit_fields(torch::optim::SGDParamState& state, const torch::optim::SGDOptions&, const Visit& visit) {
  visit("momentum_buffer", state.momentum_buffer(), true);
}

template <class Visit>
void visit_fields(torch::optim::AdagradParamState& state, const torch::optim::AdagradOptions&, const Visit& visit) {
  visit("step", state.step(), true);
  visit("sum", state.sum(), true);
}

template <class Visit>
void visit_fields(torch::optim::RMSpropParamState& state, const torch::optim::RMSpropOptions& options,
                  const Visit& visit) {
  visit("step", state.step(), true);
  visit("square_avg", state.square_avg(), true);
  visit("momentum_buffer", state.momentum_buffer(), options.momentum() > 0);
  visit("grad_avg", state.grad_avg(), options.centered());
}

template <class Visit>
void visit_fields(RuleState& state, const RuleOptions&, const Visit& visit) {
  visit("step", state.count(), true);
  for (std::size_t i = 0; i < state.kinds.size(); ++i) {
    visit(state.kinds[i].name, SlotField{state.kinds[i], state.slots[i]}, true);
  }
}

/// Whether a parameter's state has this field.
template <class Field>
bool has_field(const Field&, const at::Tensor&) {
  return true;
}
bool has_field(const SlotField& slot, const at::Tensor& parameter) {
  return empty_slot(slot.kind, parameter).defined();
}

template <class State, class Options>
std::unique_ptr<State> new_state(const Options& options) {
  if constexpr (std::is_same_v<State, RuleState>) {
    return std::make_unique<State>(options.rule->slots());
  } else {
    return std::make_unique<State>();
  }
}

template <class StateType, class OptionsType>
struct Kind {
  using State = StateType;
  using Options = OptionsType;
};

/// A class derived from it may have a state of its own.
template <class Optimizer>
bool is_exactly(const torch::optim::Optimizer& optimizer) {
  return typeid(optimizer) == typeid(Optimizer);
}

/// Calls `work` with `types`, if the optimizer is one of these. Returns whether it is.
template <class... Optimizers, class Types, class Work>
bool work_if(const torch::optim::Optimizer& optimizer, Types types, const Work& work) {
  const bool is_one_of_them = (is_exactly<Optimizers>(optimizer) || ...);
  if (is_one_of_them) {
    work(types);
  }
  return is_one_of_them;
}

/// Calls `work` with the state and options types of the optimizer.
template <class Work>
void with_kind(const torch::optim::Optimizer& optimizer, const Work& work) {
  namespace optim = torch::optim;
  if (!work_if<FusedAdamW>(optimizer, Kind<FusedAdamWState, optim::AdamWOptions>(), work) &&
      !work_if<RuleOptimizer>(optimizer, Kind<RuleState, RuleOptions>(), work) &&
      !work_if<FusedSgd, optim::SGD>(optimizer, Kind<optim::SGDParamState, optim::SGDOptions>(), work) &&
      !work_if<optim::AdamW>(optimizer, Kind<optim::AdamWParamState, optim::AdamWOptions>(), work) &&
      !work_if<optim::Adam>(optimizer, Kind<optim::AdamParamState, optim::AdamOptions>(), work) &&
      !work_if<optim::Adagrad>(optimizer, Kind<optim::AdagradParamState, optim::AdagradOptions>(), work) &&
      !work_if<optim::RMSprop>(optimizer, Kind<optim::RMSpropParamState, optim::RMSpropOptions>(), work)) {
    throw CheckpointError(
        fmt::format("optimizer state: {} is not supported, expected one of lockstep's optimizers or torch::optim's "
                    "SGD, Adam, AdamW, Adagrad, RMSprop or LBFGS itself, and no class derived from it",
                    c10::demangle(typeid(optimizer).name())),
        "use one of these optimizers, or --checkpoint.enabled false, or --checkpoint.weights_only true");
  }
}

/// Calls work(name, parameter, options, is_frozen) for every parameter: first those of the groups in order, then the
/// frozen ones, which have state if they were trained before. Leaves out those whose state another rank keeps.
template <class Options, class Work>
void for_each_parameter(const BuiltOptimizer& built, const Work& work) {
  const auto visit = [&](const std::string& name, const at::Tensor& parameter, const auto& options, bool is_frozen) {
    if (!built.elsewhere.contains(name)) {
      work(name, parameter, static_cast<const Options&>(options), is_frozen);
    }
  };
  const auto& groups = built.optimizer->param_groups();
  for (std::size_t g = 0; g < built.names.size(); ++g) {
    for (std::size_t i = 0; i < built.names[g].size(); ++i) {
      visit(built.names[g][i], groups[g].params()[i], groups[g].options(), false);
    }
  }
  for (const auto& [name, parameter] : built.frozen) {
    visit(name, parameter, groups.front().options(), true);
  }
}

/// The options with which a parameter that is frozen now was trained. It is in no group: the names of its fields tell
/// which of two rules it had.
const RuleOptions& saved_options(const RuleOptimizer& optimizer, const StateReader& reader, const std::string& name) {
  const RuleOptions& defaults = optimizer.rule_defaults();
  if (defaults.other != nullptr) {
    for (const StateSlot& slot : defaults.other->rule->slots()) {
      if (reader.has(fmt::format("{}.{}", name, slot.name))) {
        return *defaults.other;
      }
    }
  }
  return defaults;
}

std::string common_key(const BuiltOptimizer& built, const CommonNumber& number) {
  return fmt::format("{}.{}", built.key, number.name);
}

void write_parameters(const BuiltOptimizer& built, StateWriter& writer) {
  with_kind(*built.optimizer, [&]<class State, class Options>(Kind<State, Options>) {
    for_each_parameter<Options>(
        built, [&](const std::string& name, const at::Tensor& parameter, const Options& options, bool) {
          const auto found = built.optimizer->state().find(parameter.unsafeGetTensorImpl());
          if (found == built.optimizer->state().end()) {
            return;  // it had no gradient yet
          }
          visit_fields(static_cast<State&>(*found->second), options, [&](auto field, const auto& value, bool) {
            writer.write(fmt::format("{}.{}", name, field), value);
          });
        });
  });
}

LoadedStates read_parameters(const BuiltOptimizer& built, StateReader& reader) {
  LoadedStates loaded;
  with_kind(*built.optimizer, [&]<class State, class Options>(Kind<State, Options>) {
    for_each_parameter<Options>(
        built, [&](const std::string& name, const at::Tensor& parameter, const Options& options, bool is_frozen) {
          auto fresh = new_state<State>(options);
          if constexpr (std::is_same_v<State, RuleState>) {
            if (is_frozen) {
              const auto& optimizer = static_cast<const RuleOptimizer&>(*built.optimizer);
              fresh = new_state<State>(saved_options(optimizer, reader, name));
            }
          }
          // Adagrad's states exist from the start, those of the others from the first gradient.
          bool exists = !is_frozen && std::is_same_v<State, torch::optim::AdagradParamState>;
          visit_fields(*fresh, options, [&](auto field, auto&&, bool) {
            exists = exists || reader.has(fmt::format("{}.{}", name, field));
          });
          visit_fields(*fresh, options, [&](auto field, auto&& value, bool required) {
            const std::string key = fmt::format("{}.{}", name, field);
            if (!has_field(value, parameter)) {
              return;
            }
            if (reader.has(key)) {
              reader.read(key, parameter, value);
            } else if (exists && required) {
              reader.note_missing(key);
            }
          });
          loaded.emplace_back(parameter.unsafeGetTensorImpl(), exists ? std::move(fresh) : nullptr);
        });
  });
  return loaded;
}

// By parameter, because groups change when parameters are frozen.
constexpr std::string_view kRate = ".base_lr";
std::string rate_key(const std::string& parameter) { return parameter + std::string(kRate); }

/// The numbers of all parameters together; {}: the optimizer has none, or has made no step.
std::vector<at::Tensor> read_common(const BuiltOptimizer& built, const LoadedStates& loaded, StateReader& reader) {
  const bool has_steps = std::ranges::any_of(loaded, [](const auto& entry) { return entry.second != nullptr; });
  std::vector<at::Tensor> common;
  const auto* rule = dynamic_cast<const RuleOptimizer*>(built.optimizer.get());
  for (const auto& number : rule != nullptr ? rule->rule_defaults().rule->common() : std::vector<CommonNumber>()) {
    if (const std::string key = common_key(built, number); reader.has(key)) {
      double value = 0;
      reader.read(key, value);
      common.push_back(at::scalar_tensor(value, at::kDouble));
    } else if (has_steps) {
      reader.note_missing(key);
    }
  }
  return common;
}

/// The parameters under whose names the rate of a group is stored: those that it trains, or, while all of them are
/// frozen, these.
std::vector<std::string> names_for_rate(const BuiltOptimizer& built, std::size_t group) {
  std::vector<std::string> names = built.names[group];
  for (std::size_t i = 0; i < built.frozen.size() && built.names[group].empty(); ++i) {
    if (built.frozen_given[i] == built.given[group]) {
      names.push_back(built.frozen[i].first);
    }
  }
  return names;
}

std::vector<GroupRate> read_rates(const BuiltOptimizer& built, StateReader& reader) {
  std::vector<GroupRate> rates = built.rates;
  for (std::size_t group = 0; group < built.names.size(); ++group) {
    rates[group].base = rates[group].first;  // unless a callback had written another one
    rates[group].is_given = true;
    for (const std::string& name : names_for_rate(built, group)) {
      if (reader.has(rate_key(name))) {
        reader.read(rate_key(name), rates[group].base);
        rates[group].is_given = false;
      }
    }
  }
  for (const auto& [name, parameter] : built.frozen) {  // of a group that also has trained ones
    if (double unused = 0; reader.has(rate_key(name))) {
      reader.read(rate_key(name), unused);
    }
  }
  return rates;
}

}  // namespace

bool is_rate(std::string_view name) { return name.ends_with(kRate); }

NamedTensors optimizer_state(const BuiltOptimizer& built) {
  NamedTensors result;
  StateWriter writer(result);
  if (is_exactly<torch::optim::LBFGS>(*built.optimizer)) {
    write_lbfgs(built, writer);
  } else {
    write_parameters(built, writer);
  }
  if (auto* rule = dynamic_cast<RuleOptimizer*>(built.optimizer.get()); rule != nullptr && !rule->common().empty()) {
    const auto numbers = rule->rule_defaults().rule->common();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      writer.write(common_key(built, numbers[i]), rule->common()[i]);
    }
  }
  for (std::size_t group = 0; group < built.names.size(); ++group) {
    if (const GroupRate rate = current_rate(built, group); !rate.is_given) {
      for (const std::string& name : names_for_rate(built, group)) {
        writer.write(rate_key(name), rate.base);
      }
    }
  }
  return result;
}

void load_optimizer_state(BuiltOptimizer& built, const NamedTensors& state) {
  const at::NoGradGuard no_grad;
  StateReader reader(state);
  LoadedStates loaded;
  if (is_exactly<torch::optim::LBFGS>(*built.optimizer)) {
    loaded = read_lbfgs(built, reader);
  } else {
    loaded = read_parameters(built, reader);
  }
  std::vector<at::Tensor> common = read_common(built, loaded, reader);
  const std::vector<GroupRate> rates = read_rates(built, reader);
  reader.finish(state);
  for (std::size_t group = 0; group < rates.size(); ++group) {
    write_rate(built, group, rates[group], rates[group].factor);
  }
  auto& states = built.optimizer->state();
  for (auto& [parameter, fresh] : loaded) {
    if (fresh == nullptr) {
      states.erase(parameter);
    } else {
      states[parameter] = std::move(fresh);
    }
  }
  if (auto* lists = dynamic_cast<ListOptimizer*>(built.optimizer.get())) {
    lists->forget_lists();
  }
  if (auto* rule = dynamic_cast<RuleOptimizer*>(built.optimizer.get())) {
    rule->common() = std::move(common);
  }
  if (auto* fused = dynamic_cast<FusedAdamW*>(built.optimizer.get())) {
    fused->share_steps();
  }
}

}  // namespace lockstep
