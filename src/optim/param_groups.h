// Named parameters -> optimizer groups, and optimizer state -> named tensors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include <lockstep/optim/optimizers.h>
#include <lockstep/tensor/named_tensors.h>

namespace lockstep {

/// The learning rate of a parameter group.
struct GroupRate {
  double base = 0;       ///< at schedule factor 1
  double written = 0;    ///< by set_lr_factor(), the last time
  bool is_given = true;  ///< by the specification or the configuration; else a callback wrote it
};

/// An optimizer over named parameters, with the data to update and save it.
struct BuiltOptimizer {
  OptimizerPtr optimizer{};
  std::vector<std::vector<std::string>> names{};  ///< per group, in the order of its params()
  NamedTensors frozen{};                          ///< parameters without requires_grad; only their state is used
  std::vector<GroupRate> rates{};                 ///< per group
  double lr_factor = 1;
};

/// `parameters` require gradients (shared ones appear once), `frozen` ones do not. `lr` > 0 replaces the learning rate
/// of the factory. Throws: ConfigError (no parameters; a group that selects none, by name; a spec without a factory; a
/// factory that ignores its argument).
BuiltOptimizer build_optimizer(const OptimizerSpec& spec, const NamedTensors& parameters, double lr,
                               NamedTensors frozen = {});

/// Transfers state, options and learning rates of all parameters from `before` to `built`, which has the same spec.
void take_over(BuiltOptimizer& built, BuiltOptimizer& before);

/// Sets the learning rate of every group to its base x factor. If a callback has written a rate into the options since
/// the last call, that rate divided by the previous factor is the new base. Host only.
void set_lr_factor(BuiltOptimizer& built, double factor);

/// What the group's rate becomes with the next set_lr_factor().
GroupRate current_rate(const BuiltOptimizer& built, std::size_t group);

/// State as tensors "<parameter>.<state>" ("blocks.0.weight.exp_avg"); step counts are CPU scalars. A base rate that a
/// callback wrote is "<parameter>.base_lr". Supports the fused optimizers and torch::optim's SGD, Adam, AdamW, Adagrad
/// and RMSprop. Throws: CheckpointError naming another type.
NamedTensors optimizer_state(const BuiltOptimizer& built);
/// The inverse; copies to the device of each parameter. Throws: CheckpointError naming missing or unexpected tensors
/// and different shapes.
void load_optimizer_state(BuiltOptimizer& built, const NamedTensors& state);

}  // namespace lockstep
