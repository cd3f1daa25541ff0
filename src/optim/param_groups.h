// Parameters by name -> optimizer groups, and the optimizer's state back to names.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include <lockstep/optim/optimizers.h>
#include <lockstep/world/named_tensors.h>

namespace lockstep {

/// The learning rate of a parameter group.
struct GroupRate {
  double base = 0;       ///< at schedule factor 1
  double written = 0;    ///< by set_lr_factor(), the last time
  bool is_given = true;  ///< by the specification or the configuration; else a callback wrote it
};

/// An optimizer over named parameters, with what is needed to steer and to save it.
struct BuiltOptimizer {
  OptimizerPtr optimizer{};
  std::vector<std::vector<std::string>> names{};  ///< per group, beside its params()
  NamedTensors frozen{};                          ///< parameters without requires_grad: only their state is of interest
  std::vector<GroupRate> rates{};                 ///< per group
  double lr_factor = 1;
};

/// `parameters`: those that require gradients, shared ones once; `frozen`: those that do not. `lr` > 0 replaces the
/// factory's learning rate. Throws: ConfigError (no parameters at all; a group that selects nothing is named; a spec
/// without factory; a factory that ignores what it is given).
BuiltOptimizer build_optimizer(const OptimizerSpec& spec, const NamedTensors& parameters, double lr,
                               NamedTensors frozen = {});

/// `built` goes on where `before`, of the same spec, ended: state of all parameters, options, learning rates.
void take_over(BuiltOptimizer& built, BuiltOptimizer& before);

/// Sets every group's learning rate to its base x factor. A rate that a callback wrote into the group's options since
/// the last call is the new base, divided by the factor of that time. Host only.
void set_lr_factor(BuiltOptimizer& built, double factor);

/// What the group's rate becomes with the next set_lr_factor().
GroupRate current_rate(const BuiltOptimizer& built, std::size_t group);

/// State as "<parameter>.<state>" tensors ("blocks.0.weight.exp_avg"), CPU scalars for step counts. A base rate that
/// a callback wrote is "<parameter>.base_lr". Knows the fused optimizers and torch::optim's SGD,
/// Adam, AdamW, Adagrad and RMSprop. Throws: CheckpointError naming another type.
NamedTensors optimizer_state(const BuiltOptimizer& built);
/// The inverse; copies to each parameter's device. Throws: CheckpointError naming what is missing, extra or of another
/// shape.
void load_optimizer_state(BuiltOptimizer& built, const NamedTensors& state);

}  // namespace lockstep
