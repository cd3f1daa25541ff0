// A fit before its first step: what it checks, tells and resumes.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/checkpoint/rng_state.h>

#include "base/ceil_div.h"
#include "base/text.h"
#include "data/epoch_begin.h"
#include "data/step_plan.h"
#include "environment/build_info.h"
#include "parallel/single_device.h"
#include "tensor/dtype_names.h"
#include "trainer/fit_run.h"
#include "trainer/in_precision.h"
#include "trainer/load_weights.h"
#include "trainer/output/metric_names.h"
#include "trainer/step_limit.h"
#include "trainer/validate.h"
#include "world/device_graph.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

/// `data`: nullptr: the fit does not validate.
void check_validation_data(const TrainConfig& config, const BatchSource* data) {
  if (data == nullptr) {
    check_monitors_without_validation(config);
  } else {
    limit_of_validation(config).of(*data);
  }
}

// The end of a run saves, too, but a failure before it would lose everything.
void tell_seldom_saves(const CheckpointConfig& checkpoints, std::int64_t steps_per_epoch) {
  if (checkpoints.enabled && checkpoints.every_steps == 0 && checkpoints.every_s == 0 && steps_per_epoch == 0) {
    log_info(
        "no checkpoint is saved before the first end of an epoch, and the length of an epoch is not known: "
        "--checkpoint.every_s 600 saves by time");
  }
}

// DataLoader::none and sources of the program say themselves how long an epoch is.
void warn_about_epoch_length(StepCount wanted, const BatchSource& train) {
  const auto steps = train.steps_per_epoch();
  if (!wanted.is_all() && !wanted.is_part() && !train.is_combined() && steps != wanted.number()) {
    log_warning(fmt::format("data.steps_per_epoch {} does not apply: the training data say that an epoch has {}",
                            wanted.number(), steps ? counted(*steps, "step") : "no known length"));
  }
}

// This is checked at the start, because an error at the first save would lose the training until then.
void check_dtypes(const torch::nn::Module& module) {
  for (const auto& [name, tensor] : module_tensors(module)) {
    if (!dtype_name(tensor.scalar_type())) {
      throw CheckpointError(
          fmt::format("{} has dtype {}, which checkpoints cannot hold", name, c10::toString(tensor.scalar_type())),
          "use another dtype (of the complex ones complex64), or --checkpoint.enabled false");
    }
  }
}

// Frozen parts often stay in evaluation mode on purpose, but a whole module seldom does.
void tell_evaluation_mode(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& part : module.named_modules({}, /*include_self=*/false)) {
    if (!part.value()->is_training()) {
      names.push_back(part.key());
    }
  }
  if (!module.is_training()) {
    log_warning(
        "the task's module is in evaluation mode and is trained in it: dropout does nothing, batch norm keeps "
        "its statistics; call train() before fit() if that is not meant");
  } else if (!names.empty()) {
    log_info(fmt::format("{} stay{} in evaluation mode", join(names, ", "), names.size() == 1 ? "s" : ""));
  }
}

/// `total_steps`: 0: not known.
void tell_start(const Plan& plan, World& world, std::int64_t total_steps, RunFiles& files) {
  std::vector<std::string> hosts;
  std::vector<std::string> devices;
  for (const RankPlace& place : WorldAccess::places(world)) {
    hosts.push_back(place.host);
    devices.push_back(place.device);
  }
  files.event("start", {{"world_size", std::int64_t{world.size()}},
                        {"launch", plan.launch},
                        {"hosts", join(hosts, ", ")},
                        {"devices", join(devices, ", ")},
                        {"total_steps", total_steps},
                        {"build", build_text()}});
}

/// Throws now, not at the first save or report, if the state of an optimizer is needed and cannot be had.
void check_optimizer_state(const Strategy& strategy, const TrainConfig& config) {
  const bool is_saved = config.checkpoint.enabled && !config.checkpoint.weights_only;
  const std::string_view other = config.optim.non_finite == NonFinitePolicy::rollback ? "--optim.non_finite rollback"
                                 : config.spike.z_score > 0 && config.spike.policy == SpikePolicy::rollback
                                     ? "--spike.policy rollback"
                                 : config.dist.check_replicas && !config.dist.shard_optimizer ? "--dist.check_replicas"
                                                                                              : "";
  if (!is_saved && other.empty()) {
    return;
  }
  try {
    strategy.optimizer_state();
  } catch (const CheckpointError& error) {
    if (is_saved) {
      throw;
    }
    throw ConfigError(fmt::format("{}: {}", other, error.what()), "leave it out, or use another optimizer");
  }
}

/// Nothing where the length of an epoch is not known; then the end warns.
void check_minimum(const TrainConfig& config, const RunLimits& limits) {
  const std::int64_t epoch = limits.steps_per_epoch();
  if (epoch == 0) {
    return;
  }
  constexpr const char* kHint = "raise the maximum, or leave out the minimum";
  if (config.max_epochs > 0 && config.min_steps > limits.steps()) {
    throw ConfigError(fmt::format("--min_steps {} with --max_epochs {} of {}: the run ends at step {}",
                                  config.min_steps, config.max_epochs, counted(epoch, "step"), limits.steps()),
                      kHint);
  }
  if (config.max_steps > 0 && config.min_epochs > config.max_steps / epoch) {
    throw ConfigError(fmt::format("--min_epochs {} with --max_steps {}, where an epoch has {}: the run ends earlier",
                                  config.min_epochs, config.max_steps, counted(epoch, "step")),
                      kHint);
  }
}

/// A resumed run may keep a global batch for which its ranks need more micro-batches.
void check_static_graph(const TrainConfig& config, int ranks, std::int64_t global_batch, std::int64_t batch_size) {
  const std::int64_t micro_batches = micro_batch_count(global_batch, ranks, batch_size);
  if (config.dist.static_graph && ranks > 1 && micro_batches > 1) {
    throw ConfigError(
        fmt::format(
            "--dist.static_graph: the checkpoint's global batch of {} is {} micro-batches of {} samples on each "
            "of {} ranks, expected one",
            global_batch, micro_batches, batch_size, ranks),
        fmt::format("use --batch_size {}, or leave out --dist.static_graph", ceil_div(global_batch, ranks)));
  }
}

bool has_validation(const Metrics& metrics) {
  return std::ranges::any_of(metrics, [](const auto& metric) { return metric.first.starts_with(kValidationPrefix); });
}

double batch_factor(LrScaling scaling, std::int64_t global_batch, std::int64_t reference) {
  if (scaling == LrScaling::none) {
    return 1;
  }
  const double ratio = static_cast<double>(global_batch) / static_cast<double>(reference);
  return scaling == LrScaling::linear ? ratio : std::sqrt(ratio);
}

}  // namespace

void Fit::prepare() {
  record_.set_phase(Phase::prepare);
  torch::nn::Module& module = task_.module();
  place_module(module, world_.device(), config_);
  if (world_.is_main()) {
    tell_evaluation_mode(module);
  }
  std::vector<metrics::NamedMetric> metrics = task_.metrics();
  const bool has_metrics = !metrics.empty();
  metrics_.begin(std::move(metrics));
  std::optional<RunCheckpoints::Origin> origin = checkpoints_.find_origin();
  if (!origin) {
    tell_taken_samples();
    begin_with_weights();
  }
  const std::vector<OptimizerSpec> optimizers = task_.optimizers();
  const std::vector<NamedSchedule> schedules = schedules_of(optimizers, config_.optim);
  limits_.begin_epoch(/*epoch=*/0, /*first_step=*/0, train_.steps_per_epoch().value_or(0));
  if (!origin) {
    check_minimum(config_, limits_);
  }
  check_schedules(schedules, schedule_step());
  validation_times_.begin(limits_.steps_per_epoch());
  strategy_->prepare(module, optimizers);
  check_validation_data(config_, validation_);
  if (world_.is_main()) {
    warn_about_monitors(config_);
    tell_seldom_saves(config_.checkpoint, limits_.steps_per_epoch());
    warn_about_epoch_length(config_.data.steps_per_epoch, train_);
  }
  if (config_.checkpoint.enabled) {
    check_dtypes(module);
  }
  check_optimizer_state(*strategy_, config_);
  callbacks_.begin(module, world_);
  seed_rng({.seed = config_.seed, .rank = world_.rank()}, world_.device());
  const std::string from = origin ? origin->name : std::string();
  resume(std::move(origin), schedules);
  check_schedules(schedules, schedule_step());  // a resumed epoch may have another number of steps
  const std::int64_t batch = follow_global_batch();
  if (resumed_ && state_.step > 0) {
    set_rates_of_last_step();
    check_static_graph(config_, world_.size(), batch, plan_.loader.batch.batch_size);
  }
  recorded_steps_.begin(state_.step);
  reports_.set_position(state_, place_);
  // From here on the run is this one: a start that could not resume has changed nothing.
  tell_start(plan_, world_, limits_.steps(), files_);
  files_.begin(resumed_ ? state_.step : -1, own_sinks_);
  if (resumed_) {
    files_.event("resume", {{"step", state_.step},
                            {"epoch", place_.number},
                            {"total_steps", limits_.steps()},  // an epoch may have become longer or shorter
                            {"from", from}});
  }
  recorder_.open(hold_->path(), state_.step, world_);
  step_times_.begin(state_.step);
  prepare_graphs(has_metrics);
}

// The global batch is not the planned one if a resumed run keeps that of its checkpoint, or if a ReloadedLoader changes
// it.
std::int64_t Fit::follow_global_batch() {
  const std::int64_t known = train_.position().global_batch;
  const std::int64_t batch = known > 0 ? known : plan_.loader.batch.global_batch_size;
  lr_scale_ = batch_factor(config_.optim.lr_scaling, batch, config_.optim.lr_batch_size);
  loss_factor_ = batch_factor(config_.optim.loss_scaling, batch, config_.optim.lr_batch_size);
  return batch;
}

// These reasons are known before the first step; PassGraphs finds the others.
void Fit::prepare_graphs(bool has_metrics) {
  const Strategy& strategy = *strategy_;
  const std::string_view reason = !world_.device().is_cuda() ? "the device is no GPU"
                                  : world_.size() > 1 ? "gradients of several ranks are reduced while the backward runs"
                                  : typeid(strategy) != typeid(SingleDevice) ? "the program has a strategy of its own"
                                  : strategy.optimizer_count() > 1           ? "the task has several optimizers"
                                  : has_metrics                              ? "the task has metrics with states"
                                  : callbacks_.has(Stage::backward_start)    ? "a callback has the stage backward_start"
                                                                             : "";
  if (!config_.cuda_graphs) {
    if (reason.empty() && !config_.detect_anomaly) {
      times_.note_possible_graphs();
    }
  } else if (reason.empty()) {
    graphs_.emplace(task_.module(), world_.device(), clock_, make_cuda_graph);
  } else if (world_.is_main()) {
    tell_no_graph(reason);
  }
}

// An epoch without a known end goes on: of a ReplayBuffer, or of a stream that may give no sample twice. That a later
// fit goes on is no news.
void Fit::tell_taken_samples() {
  const std::int64_t taken = train_.position().consumed;
  if (!has_fitted_ && !train_.steps_per_epoch() && taken > 0) {
    console_.line(
        fmt::format("the training begins after {} of the epoch, taken before this fit", counted(taken, "sample")));
  }
}

// Optimizers and callbacks copy the weights, so this comes before them.
void Fit::begin_with_weights() {
  const std::string& from = config_.init_weights;
  if (!from.empty() && !has_fitted_) {
    const auto tensors =
        static_cast<std::int64_t>(load_weights(task_.module(), from, config_.checkpoint.allow_partial, world_));
    console_.line(fmt::format("beginning with {} of {}", counted(tensors, "tensor"), from));
    files_.event("init_weights", {{"from", from}, {"tensors", tensors}});
  }
  has_fitted_ = true;  // if this failed, the next fit loads them
}

void Fit::resume(std::optional<RunCheckpoints::Origin> origin, const std::vector<NamedSchedule>& schedules) {
  record_.set_phase(Phase::resume);
  if (!origin) {
    if (train_.steps_per_epoch()) {  // an epoch without a known end goes on, see tell_taken_samples()
      seek_epoch_begin(train_);      // the program may have looked at a batch, or an earlier fit has failed
    }
    hold_->claim_model(task_.module(), config_.checkpoint.allow_partial, world_);
    return;
  }
  // The gradients are added in the same order as before, so a resumed run stays bitwise equal to an undisturbed one.
  if (adds_as_gloo(origin->contents, world_) &&
      WorldAccess::leave_shared_memory(world_,
                                       "the checkpoint was written with Gloo by the same number of ranks, and shared "
                                       "memory would add in another order")) {
    strategy_->prepare_again();
  }
  auto parts = run_parts();
  changed_ = restore(parts, origin->contents, schedules, /*back=*/std::exchange(has_fitted_, true));
  recorder_.restore(origin->contents.values);
  hold_->claim_model(task_.module(), config_.checkpoint.allow_partial, world_);
  resumed_ = true;
  steps_at_start_ = state_.step;
  if (checkpoints_.best()) {
    monitor_.note_measured();
  }
  validation_times_.begin(limits_.steps_per_epoch());  // a resumed epoch may have another number of steps
  Metrics measured = metrics_of(origin->contents);
  reports_.restore_last(measured);
  // With this global batch, the epoch of the checkpoint is over.
  const bool ended_epoch = state_.epoch > saved_state(origin->contents).epoch;
  if (ended_epoch && validation_ != nullptr && (!has_validation(measured) || place_.validation_is_extra) &&
      validation_times_.is_due(state_, place_.steps, /*ends_epoch=*/true)) {
    place_.validation_is_due = true;
    place_.validation_is_extra = false;
  }
  if (place_.validation_is_due) {
    reports_.restore_step(std::move(measured));
  }
  checkpoints_.begin_at(state_.step, *origin);
  if (!limits_.are_reached(state_)) {  // else the end says that there is nothing to do
    console_.line(fmt::format("resuming from {} ({}epoch {}, {} samples seen)", origin->name,
                              begins_epoch() ? "at the beginning of " : "", state_.epoch + 1, state_.samples));
  } else if (place_.validation_is_due && validation_ != nullptr) {
    console_.line(fmt::format("resuming from {}: its validation was not completed and is done now", origin->name));
  }
}

// Callbacks of a validation before the first step read these rates, for example ReduceOnPlateau.
void Fit::set_rates_of_last_step() {
  ScheduleStep last = schedule_step();
  --last.step;
  for (std::size_t i = 0; i < strategy_->optimizer_count(); ++i) {
    strategy_->optimizer(i).set_lr(last);
  }
  last_.lr = strategy_->optimizer().lr();
}

// An error in the validation shows before the training, not after its first epoch.
void Fit::validate_at_start() {
  if (validation_ == nullptr || agreed_.stop) {
    return;
  }
  if (place_.validation_is_due) {  // a straight run has done it before its next step and this save
    validate();
    if (!place_.validation_is_due) {
      completed_validation_ = true;
      record_.set_phase(Phase::save);
      tell_saved(checkpoints_.save_again(state_.step, [this] { return contents(); }));
    }
    return;
  }
  if (finished()) {
    return;
  }
  if (const std::int64_t steps = config_.validate.sanity_steps; steps > 0) {
    notify(Stage::sanity_start);
    record_.set_phase(Phase::validation);
    const Evaluation tried = evaluate(task_, *validation_, world_, config_, control_,
                                      {.max_batches = steps, .least_stop = least_stop_of_validation()});
    notify(tried.complete ? Stage::sanity_end : Stage::evaluation_stopped);
    if (!tried.complete) {
      agreed_.stop = true;
      return;
    }
    const bool may_log = callbacks_.may_log(Stage::validation_start) || callbacks_.may_log(Stage::validation_end);
    if (!may_log) {
      check_monitors_of_validation(tried.means, config_);
    }
  }
  if (config_.validate.at_start && !resumed_) {
    validate();
  }
}

}  // namespace lockstep
