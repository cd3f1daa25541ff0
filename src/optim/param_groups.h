// Named parameters -> optimizer groups, and optimizer state -> named tensors.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include <torch/optim/optimizer.h>

#include <lockstep/config/train_config.h>
#include <lockstep/optim/optimizers.h>
#include <lockstep/tensor/named_tensors.h>

namespace lockstep {

/// The learning rate of a parameter group.
struct GroupRate {
  double base = 0;       ///< at schedule factor 1
  double first = 0;      ///< the base that the specification or the configuration gave
  double factor = 1;     ///< of the schedule, at the last step
  double written = 0;    ///< into the options, the last time: base x factor
  bool is_given = true;  ///< by the specification or the configuration; else a callback wrote it
};

/// An optimizer over named parameters, with the data to update and save it.
struct BuiltOptimizer {
  OptimizerPtr optimizer{};
  std::string key = "optimizer:0";                ///< of what belongs to all parameters together, in the state
  std::vector<std::vector<std::string>> names{};  ///< per group, in the order of its params()
  std::vector<std::size_t> given{};               ///< per group: the GroupSpec that it belongs to; 0 without one
  NamedTensors frozen{};                          ///< parameters without requires_grad; only their state is used
  std::vector<std::size_t> frozen_given{};        ///< per frozen parameter: the GroupSpec that selects it
  std::unordered_set<std::string> elsewhere{};    ///< parameters whose state another rank keeps
  std::vector<GroupRate> rates{};                 ///< per group
  std::vector<LrSchedule> schedules{};            ///< per group
};

/// Whether a group of the optimizer selects the parameter. Without groups it has all parameters of its module.
bool selects(const OptimizerSpec& spec, std::string_view name, const at::Tensor& parameter);

/// `parameters` require gradients (shared ones appear once), `frozen` ones do not; the spec selects all of them. If
/// they are set, `config.lr` replaces the learning rate of the factory, and `config.schedule` the schedule of the
/// optimizer. Throws: ConfigError (no parameters; a group that selects none, by name; a spec without a factory; a
/// factory that ignores its argument; an invalid schedule).
BuiltOptimizer build_optimizer(const OptimizerSpec& spec, const NamedTensors& parameters,
                               const OptimConfig& config = {}, NamedTensors frozen = {});

/// A schedule of an optimizer or of one of its groups, and the name of the optimizer.
struct NamedSchedule {
  std::string optimizer{};
  LrSchedule schedule{};
};

/// The schedules that these optimizers will follow, each once per optimizer.
std::vector<NamedSchedule> schedules_of(std::span<const OptimizerSpec> optimizers, const OptimConfig& config);

/// Throws: ConfigError naming all schedules that are invalid, or invalid in a run of this length.
void check_schedules(std::span<const NamedSchedule> schedules, const std::optional<ScheduleStep>& run = {});

/// Its state belongs to all parameters together, and its step() needs a closure.
bool is_lbfgs(const torch::optim::Optimizer& optimizer);

/// Throws: ConfigError if the optimizer does not update each parameter by itself.
void check_that_it_can_be_sharded(const OptimizerSpec& spec, const BuiltOptimizer& built);

/// Transfers state, options and learning rates of all parameters from `before` to `built`, which has the same spec. A
/// group without a parameter before gets the rate of its spec, changed by the ratio by which the rate of another group
/// of that spec was changed.
void take_over(BuiltOptimizer& built, BuiltOptimizer& before);

/// Sets the learning rate of every group to its base x the factor of its schedule. If a callback has written a rate
/// into the options since the last call, that rate divided by the previous factor is the new base. Host only.
void set_rates(BuiltOptimizer& built, const ScheduleStep& step);

/// The group's rate, with what a callback may have written since the last set_rates().
GroupRate current_rate(const BuiltOptimizer& built, std::size_t group);
/// Gives each group the rate `changed(rate)`; one whose schedule is 0 now gets the base `changed(base)`.
void change_rates(BuiltOptimizer& built, const std::function<double(double rate)>& changed);
/// Gives the group a rate, and writes base x factor into its options.
void write_rate(BuiltOptimizer& built, std::size_t group, GroupRate rate, double factor);

/// For an optimizer that evaluates other values than it trains: those of all its parameters, frozen ones too, as new
/// tensors. A parameter without state here has its trained value. {}: the trained values are evaluated.
NamedTensors evaluation_values(const BuiltOptimizer& built);

/// True for the name of a base rate in the state.
bool is_rate(std::string_view name);

/// State as tensors "<parameter>.<state>" ("blocks.0.weight.exp_avg"); step counts are CPU scalars. A base rate that a
/// callback wrote is "<parameter>.base_lr"; what belongs to all parameters together is "<key>.<name>". Supports the
/// optimizers of optimizers.h and torch::optim's SGD, Adam, AdamW, Adagrad, RMSprop and LBFGS. Throws: CheckpointError
/// naming another type.
NamedTensors optimizer_state(const BuiltOptimizer& built);
/// The inverse; copies to the device of each parameter. Throws: CheckpointError naming missing or unexpected tensors
/// and different shapes.
void load_optimizer_state(BuiltOptimizer& built, const NamedTensors& state);

}  // namespace lockstep
