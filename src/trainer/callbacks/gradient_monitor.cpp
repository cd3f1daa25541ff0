#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <lockstep/trainer/monitors.h>

#include "base/option_check.h"
#include "tensor/find_tensor.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

// What is measured of a gradient: its number of elements, their sum, the sum of their squares, the least, the largest.
enum GradientNumber : std::int64_t { kElementCount, kElementSum, kElementSquares, kLeastElement, kLargestElement };

at::Tensor numbers_of(at::Tensor gradient) {
  gradient = gradient.is_sparse() ? gradient.to_dense() : gradient;
  gradient = gradient.is_complex() ? at::view_as_real(gradient.resolve_conj()) : gradient;
  const auto [least, largest] = at::aminmax(gradient);
  const at::Tensor sum = gradient.sum(at::kDouble);
  return at::stack({at::full_like(sum, static_cast<double>(gradient.numel())), sum,
                    at::linalg_vector_norm(gradient, 2, /*dim=*/{}, /*keepdim=*/false, at::kDouble).square_(),
                    least.to(at::kDouble), largest.to(at::kDouble)});
}

/// The same numbers of several gradients together.
at::Tensor numbers_together(const std::vector<at::Tensor>& all) {
  const at::Tensor rows = at::stack(all);
  return at::cat({rows.narrow(1, kElementCount, 3).sum(0), rows.narrow(1, kLeastElement, 1).amin(0),
                  rows.narrow(1, kLargestElement, 1).amax(0)});
}

}  // namespace

GradientMonitor::GradientMonitor(GradientMonitorOptions options) : options_(std::move(options)) {
  OptionCheck check("GradientMonitor");
  check.expect("every_steps", options_.every_steps, options_.every_steps >= 1, "1 or more");
  std::unordered_set<std::string> names;
  for (const GradientGroup& group : options_.groups) {
    check.refuse_if(group.name.empty(), "a group has no name")
        .refuse_if(!group.name.empty() && !names.insert(group.name).second,
                   fmt::format("two groups have the name '{}'", group.name));
  }
  check.throw_problems();
}

void GradientMonitor::on(const StageContext& context) {
  if (context.stage == Stage::fit_start) {
    begin(context);
  } else if (context.stage == Stage::report) {
    log(context);
  } else if ((context.state.step + 1) % options_.every_steps == 0) {
    measure(context);
  }
}

void GradientMonitor::begin(const StageContext& context) {
  groups_.clear();
  for (const GradientGroup& group : options_.groups) {
    groups_.push_back({.name = group.name});
  }
  std::unordered_set<const c10::TensorImpl*> known;
  for (const auto& item : context.module.named_parameters()) {
    if (item.value().numel() == 0 || !known.insert(item.value().unsafeGetTensorImpl()).second) {
      continue;
    }
    if (options_.groups.empty()) {
      groups_.push_back({.name = item.key(), .parameters = {item.value()}});
    }
    for (std::size_t i = 0; i < options_.groups.size(); ++i) {
      const auto& select = options_.groups[i].select;
      if (!select || select(item.key(), item.value())) {
        groups_[i].parameters.push_back(item.value());
      }
    }
  }
  OptionCheck check("GradientMonitor");
  for (const Group& group : groups_) {
    check.refuse_if(group.parameters.empty(), fmt::format("group '{}' selects no parameter", group.name));
  }
  check.throw_problems();
  step_ = 0;
  measured_ = std::exchange(loaded_, {});
  if (context.state.step == 0) {  // loaded by a rollback of an earlier fit
    measured_.clear();
  }
  for (auto& [name, numbers] : measured_) {
    numbers = numbers.to(context.world.device());
  }
}

// Each optimizer of a step measures its own parameters.
void GradientMonitor::measure(const StageContext& context) {
  const at::NoGradGuard no_grad;
  if (const std::int64_t step = context.state.step + 1; std::exchange(step_, step) != step) {
    measured_.clear();
  }
  std::unordered_map<const c10::TensorImpl*, at::Tensor> of_parameters;
  for (const auto& group : context.optimizer->torch_optimizer().param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      of_parameters.emplace(parameter.unsafeGetTensorImpl(), at::Tensor());
    }
  }
  for (const Group& group : groups_) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& parameter : group.parameters) {
      const auto found = of_parameters.find(parameter.unsafeGetTensorImpl());
      if (found == of_parameters.end() || !parameter.grad().defined()) {
        continue;
      }
      if (!found->second.defined()) {
        found->second = numbers_of(parameter.grad());
      }
      all.push_back(found->second);
    }
    if (all.empty()) {
      continue;
    }
    const auto before = std::ranges::find(measured_, group.name, &NamedTensors::value_type::first);
    if (before == measured_.end()) {
      measured_.emplace_back(group.name, numbers_together(all));
    } else {
      all.push_back(before->second);
      before->second = numbers_together(all);
    }
  }
}

void GradientMonitor::log(const StageContext& context) const {
  std::vector<std::string> names;
  std::vector<at::Tensor> all;
  for (const Group& group : groups_) {
    if (const at::Tensor* measured = find_tensor(measured_, group.name)) {
      names.push_back(group.name);
      all.push_back(*measured);
    }
  }
  if (all.empty()) {
    return;
  }
  const at::Tensor rows = WorldAccess::on_host(context.world, at::stack(all));
  const double* row = rows.const_data_ptr<double>();
  for (const std::string& name : names) {
    const double mean = row[kElementSum] / row[kElementCount];
    const double variance = row[kElementSquares] / row[kElementCount] - mean * mean;
    context.log("grad_mean/" + name, mean);
    context.log("grad_std/" + name, std::sqrt(variance < 0 ? 0 : variance));  // NaN stays
    context.log("grad_min/" + name, row[kLeastElement]);
    context.log("grad_max/" + name, row[kLargestElement]);
    context.log("grad_norm/" + name, std::sqrt(row[kElementSquares]));
    row += rows.size(1);
  }
}

// A resumed run may report before its first measurement.
NamedTensors GradientMonitor::save() const { return measured_; }

}  // namespace lockstep
