#include "optim/param_groups.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "optim/fused_adamw.h"

namespace lockstep {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;

/// The weight decay among an optimizer's options, nullptr if they have none (or are of an unknown type).
double* find_weight_decay(OptimizerOptions& options) {
  const auto as = [&]<class Options>(Options* typed) { return typed == nullptr ? nullptr : &typed->weight_decay(); };
  double* found = as(dynamic_cast<torch::optim::AdamWOptions*>(&options));
  found = found != nullptr ? found : as(dynamic_cast<torch::optim::SGDOptions*>(&options));
  found = found != nullptr ? found : as(dynamic_cast<torch::optim::AdamOptions*>(&options));
  found = found != nullptr ? found : as(dynamic_cast<torch::optim::AdagradOptions*>(&options));
  found = found != nullptr ? found : as(dynamic_cast<torch::optim::RMSpropOptions*>(&options));
  return found;
}

/// Deals parameters to the groups that select them; the last entry gets those that nobody selects.
std::vector<NamedTensors> deal(const std::vector<GroupSpec>& groups, const NamedTensors& parameters) {
  std::vector<NamedTensors> dealt(groups.size() + 1);
  for (const auto& [name, parameter] : parameters) {
    const auto selects = [&](const GroupSpec& group) { return !group.select || group.select(name, parameter); };
    const auto group = std::find_if(groups.begin(), groups.end(), selects);
    dealt[static_cast<std::size_t>(group - groups.begin())].emplace_back(name, parameter);
  }
  return dealt;
}

std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  std::transform(named.begin(), named.end(), std::back_inserter(tensors),
                 [](const auto& entry) { return entry.second; });
  return tensors;
}

std::vector<std::string> names_of(const NamedTensors& named) {
  std::vector<std::string> names;
  std::transform(named.begin(), named.end(), std::back_inserter(names), [](const auto& entry) { return entry.first; });
  return names;
}

OptimizerPtr make_optimizer(const OptimizerSpec& spec, const std::vector<NamedTensors>& groups) {
  ParamGroups param_groups;
  for (const NamedTensors& group : groups) {
    param_groups.emplace_back(tensors_of(group));
  }
  OptimizerPtr optimizer = spec.make(std::move(param_groups));
  if (optimizer == nullptr) {
    throw ConfigError(fmt::format("optimizer '{}': its factory returned nothing, expected an optimizer", spec.name));
  }
  const auto same_size = [](const OptimizerParamGroup& made, const NamedTensors& given) {
    return made.params().size() == given.size();
  };
  const auto& made = optimizer->param_groups();
  if (!std::equal(made.begin(), made.end(), groups.begin(), groups.end(), same_size)) {
    throw ConfigError(
        fmt::format("optimizer '{}': its factory changed the parameter groups, expected those it was given", spec.name),
        "describe the groups in OptimizerSpec::groups");
  }
  return optimizer;
}

/// Matrices decay, vectors and scalars do not.
BuiltOptimizer build_default_groups(const OptimizerSpec& spec, const NamedTensors& parameters) {
  BuiltOptimizer built{.optimizer = make_optimizer(spec, {parameters}), .names = {names_of(parameters)}};
  OptimizerParamGroup& all = built.optimizer->param_groups().front();
  const double* decay = find_weight_decay(all.options());
  const GroupSpec matrices{
      .select = [](std::string_view, const at::Tensor& parameter) { return parameter.dim() >= 2; }};
  const std::vector<NamedTensors> dealt = deal({matrices}, parameters);
  if (decay == nullptr || *decay == 0 || dealt[1].empty()) {
    return built;
  }
  if (dealt[0].empty()) {
    *find_weight_decay(all.options()) = 0;
    return built;
  }
  auto options = all.options().clone();
  *find_weight_decay(*options) = 0;
  all.params() = tensors_of(dealt[0]);
  built.optimizer->add_param_group(OptimizerParamGroup(tensors_of(dealt[1]), std::move(options)));
  built.names = {names_of(dealt[0]), names_of(dealt[1])};
  return built;
}

BuiltOptimizer build_given_groups(const OptimizerSpec& spec, const NamedTensors& parameters) {
  std::vector<NamedTensors> dealt = deal(spec.groups, parameters);
  if (const NamedTensors& left = dealt.back(); !left.empty()) {
    log_warning(fmt::format("optimizer '{}': no group selects {} of {} parameters, they stay as they are ({}{})",
                            spec.name, left.size(), parameters.size(), left.front().first,
                            left.size() > 1 ? ", ..." : ""));
  }
  dealt.pop_back();
  std::vector<Problem> problems;
  for (std::size_t i = 0; i < dealt.size(); ++i) {
    if (dealt[i].empty()) {
      problems.push_back(
          {.what = fmt::format("optimizer '{}': group {} selects no parameter, expected at least one", spec.name, i),
           .hint = "a parameter belongs to the first group that selects it"});
    }
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  BuiltOptimizer built{.optimizer = make_optimizer(spec, dealt)};
  for (std::size_t i = 0; i < dealt.size(); ++i) {
    built.names.push_back(names_of(dealt[i]));
    if (spec.groups[i].weight_decay < 0) {
      continue;
    }
    double* decay = find_weight_decay(built.optimizer->param_groups()[i].options());
    if (decay == nullptr) {
      throw ConfigError(
          fmt::format("optimizer '{}': group {} asks for weight decay {}, expected none for this optimizer", spec.name,
                      i, spec.groups[i].weight_decay));
    }
    *decay = spec.groups[i].weight_decay;
  }
  return built;
}

}  // namespace

BuiltOptimizer build_optimizer(const OptimizerSpec& spec, const NamedTensors& parameters, double lr) {
  if (!spec.make) {
    throw ConfigError(fmt::format("optimizer '{}': found no factory, expected one", spec.name),
                      "set OptimizerSpec::make, for example to adamw()");
  }
  if (parameters.empty()) {
    throw ConfigError(
        fmt::format("optimizer '{}': found no parameters that require gradients, expected at least one", spec.name));
  }
  BuiltOptimizer built =
      spec.groups.empty() ? build_default_groups(spec, parameters) : build_given_groups(spec, parameters);
  auto& groups = built.optimizer->param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const double scale = spec.groups.empty() ? 1 : spec.groups[i].lr_scale;
    built.base_lr.push_back((lr > 0 ? lr : groups[i].options().get_lr()) * scale);
  }
  set_lr_factor(built, 1);
  return built;
}

void set_lr_factor(BuiltOptimizer& built, double factor) {
  auto& groups = built.optimizer->param_groups();
  for (std::size_t i = 0; i < built.base_lr.size(); ++i) {
    groups[i].options().set_lr(built.base_lr[i] * factor);
  }
}

}  // namespace lockstep
