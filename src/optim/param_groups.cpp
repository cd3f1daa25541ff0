#include "optim/param_groups.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <torch/optim/lbfgs.h>

#include <lockstep/base/error.h>

#include "base/mapped.h"
#include "base/option_check.h"
#include "base/problems.h"
#include "base/text.h"
#include "optim/option_values.h"
#include "optim/rule_optimizer.h"

namespace lockstep {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;

/// The first group that selects the parameter; groups.size(): none.
std::size_t group_of(const std::vector<GroupSpec>& groups, std::string_view name, const at::Tensor& parameter) {
  const auto selects = [&](const GroupSpec& group) { return !group.select || group.select(name, parameter); };
  return static_cast<std::size_t>(std::ranges::find_if(groups, selects) - groups.begin());
}

/// Distributes parameters to the groups that select them.
std::vector<NamedTensors> deal(const std::vector<GroupSpec>& groups, const NamedTensors& parameters) {
  std::vector<NamedTensors> dealt(groups.size());
  for (const auto& [name, parameter] : parameters) {
    const std::size_t group = group_of(groups, name, parameter);
    if (group == groups.size()) {
      throw ConfigError(fmt::format("no group selects parameter {} now, and one did before", name),
                        "GroupSpec::select must give the same answer each time it is called");
    }
    dealt[group].emplace_back(name, parameter);
  }
  return dealt;
}

OptimizerPtr make_optimizer(const OptimizerSpec& spec, const std::vector<NamedTensors>& groups) {
  ParamGroups param_groups;
  for (const NamedTensors& group : groups) {
    param_groups.emplace_back(mapped(group, &NamedTensors::value_type::second));
  }
  OptimizerPtr optimizer;
  try {
    optimizer = spec.make(std::move(param_groups));
  } catch (const c10::Error& error) {
    const std::string_view what = error.what_without_backtrace();
    if (groups.size() == 1 || what.find("LBFGS") == std::string_view::npos) {
      throw;
    }
    throw ConfigError(
        fmt::format("optimizer '{}': its factory failed with {} groups: {}", spec.name, groups.size(), what),
        "LBFGS takes one group: leave out OptimizerSpec::groups");
  }
  if (optimizer == nullptr) {
    throw ConfigError(fmt::format("optimizer '{}': its factory returned nullptr", spec.name));
  }
  return optimizer;
}

/// The given parameters, in the groups that the spec describes.
std::vector<NamedTensors> given_groups(const OptimizerSpec& spec, const NamedTensors& parameters,
                                       const NamedTensors& frozen) {
  if (spec.groups.empty()) {
    return {parameters};
  }
  const std::vector<NamedTensors> dealt = deal(spec.groups, parameters);
  const std::vector<NamedTensors> dealt_frozen = deal(spec.groups, frozen);
  OptionCheck check(fmt::format("optimizer '{}'", spec.name));
  for (std::size_t i = 0; i < dealt.size(); ++i) {
    check.refuse_if(dealt[i].empty() && dealt_frozen[i].empty(), fmt::format("group {} selects no parameter", i),
                    "a parameter belongs to the first group that selects it");
  }
  for (std::size_t i = 0; i < spec.groups.size(); ++i) {
    const double limit = spec.groups[i].max_grad_norm;
    check.refuse_if(!(limit >= 0), fmt::format("group {} has max_grad_norm {}, expected 0 or more", i, limit),
                    "0: this group has no limit of its own");
    const double scale = spec.groups[i].lr_scale;
    check.refuse_if(!(scale >= 0 && std::isfinite(scale)),
                    fmt::format("group {} has lr_scale {}, expected 0 or more", i, scale));
    const double decay = spec.groups[i].weight_decay.value_or(0);
    check.refuse_if(!(decay >= 0 && std::isfinite(decay)),
                    fmt::format("group {} has weight_decay {}, expected 0 or more", i, decay),
                    "leave it out: the group then has that of the factory");
  }
  check.throw_problems();
  return dealt;
}

/// How the factory changed the groups: for each group that it made, the number of the given group and the parameter
/// names.
struct Origin {
  std::size_t given = 0;
  std::vector<std::string> names{};
};

std::vector<Origin> origins_of(const OptimizerSpec& spec, const std::vector<OptimizerParamGroup>& made,
                               const std::vector<NamedTensors>& given) {
  std::unordered_map<const c10::TensorImpl*, std::pair<std::size_t, const std::string*>> left;
  for (std::size_t i = 0; i < given.size(); ++i) {
    for (const auto& [name, parameter] : given[i]) {
      left.emplace(parameter.unsafeGetTensorImpl(), std::pair(i, &name));
    }
  }
  std::vector<Origin> origins;
  bool good = true;
  auto empty = given.begin();  // a given group may have only frozen parameters; factories keep the order
  for (const OptimizerParamGroup& group : made) {
    Origin& origin = origins.emplace_back();
    if (group.params().empty()) {
      if (const auto next = std::find_if(empty, given.end(), std::mem_fn(&NamedTensors::empty)); next != given.end()) {
        origin.given = static_cast<std::size_t>(next - given.begin());
        empty = next + 1;
      }
    }
    for (const at::Tensor& parameter : group.params()) {
      const auto found = left.extract(parameter.unsafeGetTensorImpl());
      good = good && !found.empty() && (origin.names.empty() || found.mapped().first == origin.given);
      if (!good) {
        break;
      }
      origin.given = found.mapped().first;
      origin.names.push_back(*found.mapped().second);
    }
  }
  if (!good || !left.empty()) {
    throw ConfigError(
        fmt::format("optimizer '{}': its factory joined parameter groups or left out parameters", spec.name),
        "describe the groups in OptimizerSpec::groups");
  }
  return origins;
}

const LrSchedule& schedule_of(const OptimizerSpec& spec, const OptimConfig& config) {
  return config.schedule.is_set() ? config.schedule : spec.schedule;
}

/// `optim.lr` replaces the rate of the factory. A group to which the factory gave another rate keeps its ratio to it.
double base_rate(const OptimConfig& config, const torch::optim::Optimizer& optimizer, const OptimizerOptions& options) {
  const double given = options.get_lr();
  if (config.lr <= 0) {
    return given;
  }
  const double usual = optimizer.defaults().get_lr();
  return usual > 0 ? config.lr * (given / usual) : config.lr;
}

/// For GroupSpec::muon = false.
void use_other_rule(const OptimizerSpec& spec, std::size_t given, OptimizerParamGroup& group,
                    const torch::optim::Optimizer& optimizer) {
  const auto* defaults = dynamic_cast<const RuleOptions*>(&optimizer.defaults());
  if (defaults == nullptr || defaults->other == nullptr) {
    throw ConfigError(
        fmt::format("optimizer '{}': group {} sets muon to false, which only muon() supports", spec.name, given));
  }
  if (static_cast<const RuleOptions&>(group.options()).rule == defaults->rule) {
    group.set_options(std::make_unique<RuleOptions>(*defaults->other));
  }
}

/// For each group, the one of `before` that it continues. nullopt: its parameters were frozen.
std::vector<std::optional<std::size_t>> continued_groups(const BuiltOptimizer& built, const BuiltOptimizer& before) {
  std::unordered_map<std::string_view, std::size_t> group_of;
  for (std::size_t i = 0; i < before.names.size(); ++i) {
    for (const std::string& name : before.names[i]) {
      group_of.emplace(name, i);
    }
  }
  std::vector<std::optional<std::size_t>> continued(built.names.size());
  for (std::size_t i = 0; i < built.names.size(); ++i) {
    for (const std::string& name : built.names[i]) {
      if (const auto found = group_of.find(name); found != group_of.end()) {
        continued[i] = found->second;
        break;
      }
    }
  }
  return continued;
}

void set_weight_decay(const OptimizerSpec& spec, std::size_t group, OptimizerOptions& options) {
  const std::optional<double> wanted = spec.groups[group].weight_decay;
  if (!wanted) {
    return;
  }
  double* decay = option_values(options).weight_decay;
  if (decay == nullptr) {
    throw ConfigError(
        fmt::format("optimizer '{}': group {} sets weight decay {}, which this optimizer does not support", spec.name,
                    group, *wanted));
  }
  *decay = *wanted;
}

}  // namespace

bool selects(const OptimizerSpec& spec, std::string_view name, const at::Tensor& parameter) {
  return spec.groups.empty() || group_of(spec.groups, name, parameter) < spec.groups.size();
}

std::vector<NamedSchedule> schedules_of(std::span<const OptimizerSpec> optimizers, const OptimConfig& config) {
  std::vector<NamedSchedule> found;
  for (const OptimizerSpec& spec : optimizers) {
    const std::size_t first = found.size();
    found.push_back({spec.name, schedule_of(spec, config)});
    for (const GroupSpec& group : spec.groups) {
      const auto is_known = [&](const NamedSchedule& known) { return known.schedule == group.schedule; };
      if (group.schedule.is_set() &&
          std::none_of(found.begin() + static_cast<std::ptrdiff_t>(first), found.end(), is_known)) {
        found.push_back({spec.name, group.schedule});
      }
    }
  }
  return found;
}

void check_schedules(std::span<const NamedSchedule> schedules, const std::optional<ScheduleStep>& run) {
  std::vector<Problem> problems;
  for (const auto& [optimizer, schedule] : schedules) {
    const bool in_run = run && schedule.problems().empty();
    for (const Problem& problem : in_run ? schedule.problems_in(*run) : schedule.problems()) {
      problems.push_back(
          {fmt::format("schedule {} of optimizer '{}': {}", printable(schedule.text()), optimizer, problem.what),
           problem.hint});
    }
  }
  throw_if_any(std::move(problems));
}

BuiltOptimizer build_optimizer(const OptimizerSpec& spec, const NamedTensors& parameters, const OptimConfig& config,
                               NamedTensors frozen) {
  if (!spec.make) {
    throw ConfigError(fmt::format("optimizer '{}': the factory is missing", spec.name),
                      "set OptimizerSpec::make, for example to adamw()");
  }
  if (parameters.empty() && frozen.empty() && spec.groups.empty()) {
    throw ConfigError(fmt::format("optimizer '{}': no parameter requires gradients", spec.name),
                      "register the layers with register_module(), or unfreeze some of them");
  }
  const std::vector<NamedTensors> given = given_groups(spec, parameters, frozen);
  BuiltOptimizer built{.optimizer = make_optimizer(spec, given), .frozen = std::move(frozen)};
  for (const auto& [name, parameter] : built.frozen) {
    built.frozen_given.push_back(spec.groups.empty() ? 0 : group_of(spec.groups, name, parameter));
  }
  auto& groups = built.optimizer->param_groups();
  if (groups.empty()) {
    throw ConfigError(fmt::format("optimizer '{}': its factory made no parameter group", spec.name),
                      "give the optimizer every group that the factory gets; all parameters of a group may be frozen");
  }
  std::vector<Origin> origins = origins_of(spec, groups, given);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    double scale = 1;
    built.schedules.push_back(schedule_of(spec, config));
    if (!spec.groups.empty()) {
      const GroupSpec& group = spec.groups[origins[i].given];
      scale = group.lr_scale;
      if (group.schedule.is_set()) {
        built.schedules.back() = group.schedule;
      }
      if (!group.muon) {
        use_other_rule(spec, origins[i].given, groups[i], *built.optimizer);
      }
      set_weight_decay(spec, origins[i].given, groups[i].options());
    }
    const double lr = base_rate(config, *built.optimizer, groups[i].options());
    built.rates.emplace_back();
    write_rate(built, i, {.base = lr * scale, .first = lr * scale}, /*factor=*/1);
    built.names.push_back(std::move(origins[i].names));
    built.given.push_back(origins[i].given);
  }
  return built;
}

bool is_lbfgs(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr;
}

void check_that_it_can_be_sharded(const OptimizerSpec& spec, const BuiltOptimizer& built) {
  const auto* rule = dynamic_cast<const RuleOptimizer*>(built.optimizer.get());
  const bool has_common = rule != nullptr && !rule->rule_defaults().rule->common().empty();
  if (has_common || is_lbfgs(*built.optimizer)) {
    throw ConfigError(fmt::format("--dist.shard_optimizer true: optimizer '{}' is {}, which updates all parameters "
                                  "together",
                                  spec.name, has_common ? "Prodigy" : "LBFGS"),
                      "use another optimizer, or --dist.shard_optimizer false");
  }
}

void take_over(BuiltOptimizer& built, BuiltOptimizer& before) {
  if (!is_lbfgs(*built.optimizer)) {
    auto& states = built.optimizer->state();
    for (auto& [parameter, state] : before.optimizer->state()) {
      states[parameter] = std::move(state);
    }
  }
  if (auto* rule = dynamic_cast<RuleOptimizer*>(built.optimizer.get())) {
    rule->common() = dynamic_cast<RuleOptimizer&>(*before.optimizer).common();
  }
  auto& groups = built.optimizer->param_groups();
  const auto continued = continued_groups(built, before);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (continued[i]) {
      groups[i].set_options(before.optimizer->param_groups()[*continued[i]].options().clone());
      built.rates[i] = before.rates[*continued[i]];
    } else if (const auto sibling = std::ranges::find(before.given, built.given[i]); sibling != before.given.end()) {
      const GroupRate rate = current_rate(before, static_cast<std::size_t>(sibling - before.given.begin()));
      const double change = rate.first > 0 ? rate.base / rate.first : 1;
      write_rate(built, i,
                 {.base = built.rates[i].base * change, .first = built.rates[i].first, .is_given = rate.is_given},
                 rate.factor);
    }
  }
}

void write_rate(BuiltOptimizer& built, std::size_t group, GroupRate rate, double factor) {
  rate.factor = factor;
  rate.written = rate.base * factor;
  built.optimizer->param_groups()[group].options().set_lr(rate.written);
  built.rates[group] = rate;
}

GroupRate current_rate(const BuiltOptimizer& built, std::size_t group) {
  GroupRate rate = built.rates.at(group);
  if (const double found = built.optimizer->param_groups().at(group).options().get_lr(); found != rate.written) {
    rate.base = rate.factor > 0 ? found / rate.factor : found;
    rate.written = found;
    rate.is_given = false;
  }
  return rate;
}

void change_rates(BuiltOptimizer& built, const std::function<double(double rate)>& changed) {
  auto& groups = built.optimizer->param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    GroupRate rate = current_rate(built, i);
    if (rate.factor > 0) {
      groups[i].options().set_lr(changed(rate.written));  // set_rates() makes it the base
    } else if (const double base = changed(rate.base); base != rate.base) {
      rate.base = base;
      rate.is_given = false;
      write_rate(built, i, rate, rate.factor);
    }
  }
}

NamedTensors evaluation_values(const BuiltOptimizer& built) {
  const auto* optimizer = dynamic_cast<const RuleOptimizer*>(built.optimizer.get());
  if (optimizer == nullptr || !optimizer->rule_defaults().rule->has_evaluation_values()) {
    return {};
  }
  const at::NoGradGuard no_grad;
  NamedTensors values;
  const auto add = [&](const std::string& name, const at::Tensor& parameter) {
    const auto found = optimizer->state().find(parameter.unsafeGetTensorImpl());
    values.emplace_back(name, found == optimizer->state().end()
                                  ? parameter.detach().clone()
                                  : optimizer->rule_defaults().rule->evaluation_value(
                                        parameter, static_cast<const RuleState&>(*found->second).slots));
  };
  for (std::size_t group = 0; group < built.names.size(); ++group) {
    for (std::size_t i = 0; i < built.names[group].size(); ++i) {
      add(built.names[group][i], optimizer->param_groups()[group].params()[i]);
    }
  }
  for (const auto& [name, parameter] : built.frozen) {
    add(name, parameter);
  }
  return values;
}

void set_rates(BuiltOptimizer& built, const ScheduleStep& step) {
  for (std::size_t i = 0; i < built.rates.size(); ++i) {
    const double factor = built.schedules[i].factor(step);
    if (!(factor >= 0 && std::isfinite(factor))) {
      throw Error(fmt::format("schedule {}: its factor at step {} is {}, expected a finite number, 0 or more",
                              printable(built.schedules[i].text()), step.step, factor),
                  "give set_lr() the total_steps and the steps_per_epoch; let a function return such a number");
    }
    write_rate(built, i, current_rate(built, i), factor * step.lr_scale);
  }
}

}  // namespace lockstep
