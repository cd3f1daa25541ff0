#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "optim/fused_adamw.h"
#include "optim/fused_sgd.h"
#include "optim/list_optimizer.h"
#include "optim/param_groups.h"
#include "optim/rule_optimizer.h"
#include "tensor/mismatch.h"

namespace lockstep {
namespace {

using torch::optim::OptimizerParamState;

/// A step count that is stored in a tensor.
struct Counter {
  at::Tensor& tensor;
};

/// A slot of a RuleState.
struct Slot {
  const StateSlot& kind;
  at::Tensor& tensor;
};

// The fields of each state in the order of the file: visit(name, field, required).

template <class Visit>
void visit_fields(FusedAdamWState& state, const torch::optim::AdamWOptions& options, const Visit& visit) {
  visit("step", Counter{state.step}, true);
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
    visit(state.kinds[i].name, Slot{state.kinds[i], state.slots[i]}, true);
  }
}

/// Whether a parameter's state has this field.
template <class Field>
bool has_field(const Field&, const at::Tensor&) {
  return true;
}
bool has_field(const Slot& slot, const at::Tensor& parameter) { return empty_slot(slot.kind, parameter).defined(); }

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

/// Appends the fields of states to named tensors. Reads each shared counter from the device only once.
class StateWriter {
 public:
  explicit StateWriter(NamedTensors& out) : out_(out) {}

  void write(std::string name, double rate) {
    out_.emplace_back(std::move(name), at::scalar_tensor(rate, at::kDouble));
  }
  void write(std::string name, std::int64_t count) {
    out_.emplace_back(std::move(name), at::scalar_tensor(count, at::kLong));
  }
  void write(std::string name, const Counter& counter) {
    at::Tensor& count = counts_[counter.tensor.unsafeGetTensorImpl()];
    if (!count.defined()) {
      count = at::scalar_tensor(counter.tensor.item().toLong(), at::kLong);
    }
    out_.emplace_back(std::move(name), count);
  }
  void write(std::string name, const Slot& slot) { write(std::move(name), slot.tensor); }
  void write(std::string name, const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return;
    }
    if (tensor.layout() != at::kStrided) {
      throw Error(fmt::format("optimizer state {}: it is sparse, and checkpoints hold dense tensors", name),
                  "use momentum 0 for parameters with sparse gradients, or an embedding without sparse(true)");
    }
    out_.emplace_back(std::move(name), tensor);
  }

 private:
  NamedTensors& out_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> counts_{};
};

/// Reads fields from named tensors and records mismatches.
class StateReader {
 public:
  explicit StateReader(const NamedTensors& given) : given_(given.begin(), given.end()) {}

  bool has(const std::string& name) const { return given_.contains(name); }

  void read(const std::string& name, const at::Tensor&, std::int64_t& count) {
    if (const at::Tensor found = take(name); is_count(name, found)) {
      count = found.item().toLong();
    }
  }
  void read(const std::string& name, const at::Tensor& parameter, const Counter& counter) {
    if (const at::Tensor found = take(name); is_count(name, found)) {
      counter.tensor =
          at::full({}, found.item().toDouble(), parameter.options().dtype(at::kFloat).requires_grad(false));
    }
  }
  void read(const std::string& name, const at::Tensor& parameter, at::Tensor& tensor) {
    if (const at::Tensor found = take(name); mismatch_.compare(name, found, parameter)) {
      tensor = at::empty_like(parameter).copy_(found);
    }
  }
  void read(const std::string& name, const at::Tensor& parameter, const Slot& slot) {
    const at::Tensor expected = empty_slot(slot.kind, parameter);
    if (const at::Tensor found = take(name); mismatch_.compare(name, found, expected)) {
      slot.tensor = expected.copy_(found);
    }
  }
  void read(const std::string& name, double& rate) {
    if (const at::Tensor found = take(name); mismatch_.compare(name, found, at::scalar_tensor(rate, at::kDouble))) {
      rate = found.item().toDouble();
    }
  }
  /// A tensor of this shape and dtype, copied to the device of `like`. Undefined: it is missing or differs.
  at::Tensor read_like(const std::string& name, const at::Tensor& like) {
    if (!has(name)) {
      note_missing(name);
      return {};
    }
    const at::Tensor found = take(name);
    return mismatch_.compare(name, found, like) ? at::empty_like(like).copy_(found) : at::Tensor();
  }
  void note_missing(const std::string& name) { mismatch_.missing.push_back(name); }
  /// The number of elements of a tensor that exists.
  std::int64_t size_of(const std::string& name) const { return given_.at(name).numel(); }
  /// Leaves out all tensors whose names begin so.
  void skip(std::string_view prefix) {
    for (const auto& [name, tensor] : given_) {
      if (name.starts_with(prefix)) {
        taken_.insert(name);
      }
    }
  }

  /// Throws: CheckpointError with all recorded mismatches and all unread tensors.
  void finish(const NamedTensors& given) {
    for (const auto& [name, tensor] : given) {
      if (!taken_.contains(name)) {
        mismatch_.unexpected.push_back(name);
      }
    }
    if (mismatch_.any()) {
      throw CheckpointError("the optimizer state does not match: " + mismatch_.text(),
                            "resume with the optimizer and parameter groups of the checkpoint");
    }
  }

 private:
  at::Tensor take(const std::string& name) {
    taken_.insert(name);
    return given_.at(name);
  }
  bool is_count(const std::string& name, const at::Tensor& found) {
    const bool good = found.numel() == 1 && (found.scalar_type() == at::kLong || found.scalar_type() == at::kFloat);
    if (!good) {
      mismatch_.compare(name, found, at::scalar_tensor(0, at::kLong));
    }
    return good;
  }

  std::unordered_map<std::string, at::Tensor> given_;
  std::unordered_set<std::string> taken_{};
  Mismatch mismatch_{};
};

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

/// By the address of a parameter. nullptr: no state yet.
using LoadedStates = std::vector<std::pair<void*, std::unique_ptr<OptimizerParamState>>>;

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

// Note [State of LBFGS]: it belongs to all parameters together, and torch keeps it under the first one. `al` is left
// out: each step writes it before it reads it. Lists have one tensor for each remembered step, the oldest first.

std::string lbfgs_key(const BuiltOptimizer& built, std::string_view field) {
  return fmt::format("{}.{}", built.key, field);
}
// No second dot: what is before the last one tells the optimizer.
std::string lbfgs_key(const BuiltOptimizer& built, std::string_view list, std::size_t i) {
  return fmt::format("{}.{}:{}", built.key, list, i);
}

void write_lbfgs(const BuiltOptimizer& built, StateWriter& writer) {
  if (built.optimizer->state().empty()) {
    return;  // no step yet
  }
  const auto& state = static_cast<const torch::optim::LBFGSParamState&>(*built.optimizer->state().begin()->second);
  writer.write(lbfgs_key(built, "func_evals"), state.func_evals());
  writer.write(lbfgs_key(built, "n_iter"), state.n_iter());
  writer.write(lbfgs_key(built, "t"), state.t());
  writer.write(lbfgs_key(built, "prev_loss"), state.prev_loss());
  writer.write(lbfgs_key(built, "d"), state.d());
  writer.write(lbfgs_key(built, "H_diag"), state.H_diag());
  writer.write(lbfgs_key(built, "prev_flat_grad"), state.prev_flat_grad());
  for (std::size_t i = 0; i < state.ro().size(); ++i) {
    writer.write(lbfgs_key(built, "old_dirs", i), state.old_dirs()[i]);
    writer.write(lbfgs_key(built, "old_stps", i), state.old_stps()[i]);
    writer.write(lbfgs_key(built, "ro", i), state.ro()[i]);
  }
}

/// The gradient of all parameters as one vector, without values.
at::Tensor flat_gradient(const std::vector<at::Tensor>& parameters) {
  std::int64_t size = 0;
  at::ScalarType dtype = parameters.front().scalar_type();
  for (const at::Tensor& parameter : parameters) {
    size += parameter.numel();
    dtype = c10::promoteTypes(dtype, parameter.scalar_type());
  }
  return at::empty({size}, parameters.front().options().dtype(dtype).requires_grad(false));
}

/// Directions, and what they are calculated from.
void read_lbfgs_memory(const BuiltOptimizer& built, StateReader& reader, torch::optim::LBFGSParamState& state) {
  const auto& group = built.optimizer->param_groups().front();
  const at::Tensor vector = flat_gradient(group.params());
  const at::Tensor number = at::empty({}, vector.options());
  state.d(reader.read_like(lbfgs_key(built, "d"), vector));
  state.prev_flat_grad(reader.read_like(lbfgs_key(built, "prev_flat_grad"), vector));
  const auto remembers = [&](std::size_t i) { return reader.has(lbfgs_key(built, "ro", i)); };
  // torch begins with an integer.
  const bool is_first = !remembers(0);
  state.H_diag(reader.read_like(lbfgs_key(built, "H_diag"), is_first ? at::empty({}, at::kLong) : number));
  const auto most =
      static_cast<std::size_t>(static_cast<const torch::optim::LBFGSOptions&>(group.options()).history_size());
  for (std::size_t i = 0; i < most && remembers(i); ++i) {
    state.old_dirs().push_back(reader.read_like(lbfgs_key(built, "old_dirs", i), vector));
    state.old_stps().push_back(reader.read_like(lbfgs_key(built, "old_stps", i), vector));
    state.ro().push_back(reader.read_like(lbfgs_key(built, "ro", i), number));
  }
}

LoadedStates read_lbfgs(const BuiltOptimizer& built, StateReader& reader) {
  const auto& group = built.optimizer->param_groups().front();
  LoadedStates loaded;
  if (group.params().empty()) {
    return loaded;
  }
  void* const place = group.params().front().unsafeGetTensorImpl();
  if (!reader.has(lbfgs_key(built, "n_iter"))) {
    loaded.emplace_back(place, nullptr);
    return loaded;
  }
  // A callback may freeze them again after the resume; the module was compared before.
  const std::string direction = lbfgs_key(built, "d");
  if (reader.has(direction) && reader.size_of(direction) != flat_gradient(group.params()).numel()) {
    if (log_rank() == 0) {  // every rank finds the same
      log_warning("LBFGS begins with an empty memory: other parameters were frozen when its state was saved");
    }
    reader.skip(lbfgs_key(built, ""));
    loaded.emplace_back(place, nullptr);
    return loaded;
  }
  const auto read_number = [&](std::string_view field, auto value) {
    const std::string key = lbfgs_key(built, field);
    const at::Tensor found =
        reader.read_like(key, at::scalar_tensor(value, c10::CppTypeToScalarType<decltype(value)>::value));
    return found.defined() ? found.item<decltype(value)>() : value;
  };
  auto state = std::make_unique<torch::optim::LBFGSParamState>();
  state->func_evals(read_number("func_evals", std::int64_t{0}));
  state->n_iter(read_number("n_iter", std::int64_t{0}));
  state->t(read_number("t", 0.0));
  state->prev_loss(read_number("prev_loss", 0.0));
  if (state->n_iter() > 0) {
    read_lbfgs_memory(built, reader, *state);
  }
  loaded.emplace_back(place, std::move(state));
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
