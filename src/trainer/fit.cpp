// The training loop is Fit::train; one step is Task::optimize in step.cpp.
#include "trainer/fit.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/checkpoint/rng_state.h>
#include <lockstep/optim/precision.h>

#include "base/duration.h"
#include "base/kept_memory.h"
#include "base/text.h"
#include "checkpoint/run_hold.h"
#include "optim/param_groups.h"
#include "parallel/parameter_sync.h"
#include "storage/run_commands.h"
#include "trainer/agreed_stop.h"
#include "trainer/fit_start.h"
#include "trainer/in_precision.h"
#include "trainer/output/metric_names.h"
#include "trainer/output/run_end.h"
#include "trainer/output/run_files.h"
#include "trainer/output/run_metrics.h"
#include "trainer/output/run_reports.h"
#include "trainer/output/step_recorder.h"
#include "trainer/output/step_times.h"
#include "trainer/output/time_shares.h"
#include "trainer/resume.h"
#include "trainer/run_checkpoints.h"
#include "trainer/run_limits.h"
#include "trainer/step_context.h"
#include "trainer/validate.h"
#include "trainer/validation_times.h"
#include "trainer/watch/anomalies.h"
#include "trainer/watch/run_snapshot.h"
#include "trainer/watch/straggler_watch.h"
#include "world/agreement.h"
#include "world/world_access.h"

namespace lockstep {

namespace {

using Clock = RunReports::Clock;

// One call of Trainer::fit.
class Fit {
 public:
  Fit(TrainerParts& trainer, Task& task, BatchSource& train, BatchSource* validation)
      : plan_(trainer.plan),
        config_(plan_.config),
        world_(trainer.world),
        record_(WorldAccess::progress(world_)),
        control_(trainer.control),
        console_(*trainer.console),
        callbacks_(trainer.callbacks),
        task_(task),
        train_(train),
        validation_(validation),
        memory_(config_.memory.keep_freed),
        strategy_(strategy_of(trainer)),
        own_sinks_(trainer.sinks),
        hold_(RunHold::take(plan_, world_)),
        files_(plan_, world_.is_main()),
        checkpoints_(plan_, world_, *hold_, files_),
        commands_(real_file_system(), world_.is_main() ? hold_->written_directory() : std::string()),
        recorder_(config_, world_),
        stragglers_(world_, plan_.host),
        reports_(trainer.console, config_.report.progress, world_, files_) {}
  ~Fit() { control_.end_fit(); }
  Fit(const Fit&) = delete;
  Fit& operator=(const Fit&) = delete;

  FitResult run() {
    const c10::DeviceGuard on_device(world_.device());  // the program may call fit in a thread of its own
    const NumericsScope numerics(config_);
    try {
      return train();
    } catch (const CommError& error) {  // the rank that caused it reports the last save
      tell_callbacks(error);
      throw;
    } catch (const IoError& error) {  // saving failed, or would fail
      note_failure(error);
      tell_callbacks(error);
      throw;
    } catch (const std::exception& error) {
      save_after_failure();
      note_failure(error);
      tell_callbacks(error);
      throw;
    } catch (...) {
      save_after_failure();
      throw;
    }
  }

 private:
  FitResult train() {
    prepare();
    notify(Stage::fit_start);
    anomalies_.begin(snapshot_parts(), state_.step);
    // For example SIGTERM before this fit. Only the loop checks for requests repeatedly (see SignalScope), so
    // stop_requested() must not be called here without a request.
    agreed_.stop = world_.any(!control_.stop_reason().empty() && limits_.must_stop(control_.stop_requested(), state_));
    validate_at_start();
    while (!finished()) {  // limits and agreed stop: the same result on every rank
      const StepBatches* batches = next_batches();
      if (batches == nullptr) {
        break;
      }
      step(*batches);
      notify(Stage::step_end);
      if (batches->ends_epoch) {
        notify(Stage::epoch_end);
      }
      look_for_straggler();
      if (due(config_.report.every_steps) || agreed_.report) {
        report();  // the only place that waits for the device
      }
      if (batches->ends_epoch) {
        reports_.end_epoch();
        report_epoch();
      }
      if (validation_ != nullptr &&
          (agreed_.validate || validation_times_.is_due(state_, place_.steps, batches->ends_epoch))) {
        validate();
      }
      if (agreed_.save_ended) {
        tell_saved(checkpoints_.collect());
      }
      if (agreed_.save || checkpoints_.is_due(state_, batches->ends_epoch)) {
        save();
      }
    }
    return finish();
  }

  void prepare() {
    record_.set_phase(Phase::prepare);
    torch::nn::Module& module = task_.module();
    place_module(module, world_.device(), config_);
    if (world_.is_main()) {
      tell_evaluation_mode(module);
    }
    metrics_.begin(task_.metrics());
    const std::vector<OptimizerSpec> optimizers = task_.optimizers();
    const std::vector<NamedSchedule> schedules = schedules_of(optimizers, config_.optim);
    limits_.set_steps_per_epoch(train_.steps_per_epoch().value_or(0));
    check_schedules(schedules, schedule_step());
    validation_times_.begin(limits_.steps_per_epoch());
    strategy_->prepare(module, optimizers);
    check_monitored_data(config_, validation_ != nullptr);
    if (config_.checkpoint.enabled) {
      check_dtypes(module);
      if (!config_.checkpoint.weights_only) {
        strategy_->optimizer_state();  // throws now, not at the first save, if an optimizer's state cannot be saved
      }
    }
    callbacks_.begin(module, world_);
    tell_start(plan_, world_, files_);
    seed_rng(config_.seed, world_.rank(), /*step=*/0, world_.device());
    resume(schedules);
    const std::int64_t resumed_batch = train_.position().global_batch;  // a resumed run may keep that of its checkpoint
    const std::int64_t batch = resumed_batch > 0 ? resumed_batch : plan_.loader.batch.global_batch_size;
    lr_scale_ = batch_factor(config_.optim.lr_scaling, batch, config_.optim.lr_batch_size);
    loss_factor_ = batch_factor(config_.optim.loss_scaling, batch, config_.optim.lr_batch_size);
    record_.set_step(state_.step);
    reports_.set_position(state_, place_);
    files_.begin(state_.step, own_sinks_);
    recorder_.open(state_.step);
    step_times_.begin(state_.step);
  }

  // An error in the validation shows before the training, not after its first epoch.
  void validate_at_start() {
    if (validation_ == nullptr || finished()) {
      return;
    }
    if (place_.validation_is_due) {  // a straight run has done it before its next step
      validate();
      return;
    }
    if (const std::int64_t steps = config_.validate.sanity_steps; steps > 0) {
      const LoaderPosition start = validation_->position();
      evaluate(task_, *validation_, world_, config_, control_, {.max_batches = steps});
      validation_->seek(start);
    }
    if (config_.validate.at_start && !resumed_) {
      validate();
    }
  }

  void resume(const std::vector<NamedSchedule>& schedules) {
    record_.set_phase(Phase::resume);
    const auto origin = checkpoints_.find_origin();
    if (!origin) {
      hold_->claim_model(task_.module(), config_.checkpoint.allow_partial, world_);
      return;
    }
    auto parts = run_parts();
    changed_ = restore(parts, origin->contents, schedules);
    hold_->claim_model(task_.module(), config_.checkpoint.allow_partial, world_);
    resumed_ = true;
    steps_at_start_ = state_.step;
    checkpoints_.begin_at(state_.step);
    console_.line(
        fmt::format("resuming from {} (epoch {}, {} samples seen)", origin->name, state_.epoch + 1, state_.samples));
    files_.event("resume", {{"step", state_.step}, {"epoch", state_.epoch}, {"from", origin->name}});
  }

  RunParts run_parts() {
    return {plan_,  world_, task_.module(), *strategy_,          train_,         callbacks_,
            state_, place_, metrics_,       anomalies_.spikes(), limits_.steps()};
  }

  ScheduleStep schedule_step() const {
    return {.step = state_.step,
            .total_steps = limits_.steps(),
            .steps_per_epoch = limits_.steps_per_epoch(),
            .lr_scale = lr_scale_};
  }

  bool finished() const { return agreed_.stop || limits_.are_reached(state_); }

  bool due(std::int64_t every_steps) const { return every_steps > 0 && state_.step % every_steps == 0; }

  // Starts at the resume position and continues with the next epoch automatically.
  const StepBatches* next_batches() {
    record_.set_phase(Phase::data);
    stragglers_.begin_step();
    return train_.next();
  }

  void step(const StepBatches& batches) {
    is_between_steps_ = false;
    reports_.forget_step();
    strategy_->begin_step(state_.step, requests(batches));
    if (callbacks_.has(Stage::step_start)) {
      StageContext start = at(Stage::step_start);
      start.batches = &batches;
      notify(start);
    }
    record_.set_phase(Phase::task);
    const StepContext context{.strategy = *strategy_,
                              .world = world_,
                              .config = config_,
                              .batches = batches,
                              .meter = metrics_.of_window(),
                              .epoch_meter = metrics_.of_epoch(),
                              .spikes = anomalies_.spikes().gate(),
                              .at = schedule_step(),
                              .loss_factor = loss_factor_,
                              .after_backward = callbacks_.has(Stage::backward_end) ? &after_backward_ : nullptr};
    Step step(context);
    task_.optimize(step);
    if (steps_here_++ == 0) {
      check_that_it_trains(step);
    }
    ++state_.step;
    record_.set_step(state_.step);
    count_in_epoch();
    state_.epoch += batches.ends_epoch ? 1 : 0;
    state_.samples += batches.global_samples;
    agreed_ = strategy_->agreed();
    last_ = step.result();
    anomalies_.add(state_.step - 1, last_, batches);
    recorder_.add(state_, batches, last_, task_.module());
    is_between_steps_ = true;
    if (steps_here_ == 1) {  // the first step warms up caches, memory and data loading
      reports_.begin_window(state_.samples);
    }
    reports_.show_step(state_, place_, train_.steps_per_epoch());
  }

  void count_in_epoch() {
    if (place_.number != state_.epoch + 1) {
      place_ = {.number = state_.epoch + 1};
    }
    ++place_.steps;
    place_.validation_is_due = false;
  }

  // What this rank asks for; all ranks agree on it at the end of the step.
  StepRequests requests(const StepBatches& batches) {
    const CommandsTaken commands = commands_.take();
    if (commands.stop) {
      control_.request_stop("lockstep ctl", StopKind::terminate);
    }
    const TrainState after{.step = state_.step + 1, .epoch = state_.epoch + (batches.ends_epoch ? 1 : 0), .samples = 0};
    return {.stop = limits_.must_stop(control_.stop_requested(), after),
            .save = control_.take_checkpoint_request() || commands.save || checkpoints_.asks_by_time(),
            .save_ended = checkpoints_.tells_end(),
            .validate = commands.validate || (world_.is_main() && validation_times_.asks_by_time()),
            .report = commands.report};
  }

  // Once per fit: without a loss on any rank, nothing is trained.
  void check_that_it_trains(const Step& step) {
    const bool lost = world_.any(step.backward_without_loss());
    if (lost && !world_.any(step.backward_with_loss())) {
      throw Error("no step returned a loss on any rank: nothing is trained",
                  "return the loss of the batch from training_step()");
    }
  }

  // Before reports, validation and saves, because the main rank spends additional time in them.
  void look_for_straggler() {
    if (const auto news = stragglers_.end_step(state_.step)) {
      if (world_.is_main()) {
        log_warning(news->text);
      }
      files_.event(news->event, news->fields);
    }
  }

  void report() {
    record_.set_phase(Phase::report);
    const bool ends_window = due(config_.report.every_steps);  // a continued run completes the one of an early end
    Metrics metrics = window_metrics(ends_window);
    reports_.add_speed(metrics, state_.samples);
    metrics.emplace_back("epoch", static_cast<double>(place_.number));
    Metrics& logged = metrics_.logged();
    metrics.insert(metrics.end(), logged.begin(), logged.end());
    if (ends_window) {
      logged.clear();
    }
    metrics = publish(Stage::report, std::move(metrics));
    check_values(ends_window);
    if (config_.report.step_times) {
      step_times_.report(state_.step);
    }
    if (config_.dist.check_replicas) {
      check_replicas(task_.module(), world_,
                     config_.dist.shard_optimizer ? NamedTensors() : strategy_->optimizer_state(),
                     recorder_.find_divergence(world_));
    }
    check_monitor(Stage::report, metrics);
  }

  void report_epoch() {
    if (!config_.report.epoch_means) {
      return;
    }
    record_.set_phase(Phase::report);
    const Metrics metrics = publish(Stage::epoch_report, metrics_.end_epoch());
    check_monitor(Stage::epoch_report, metrics);
  }

  // Of the steps since the last report.
  Metrics window_metrics(bool ends_window) {
    Metrics metrics = ends_window ? metrics_.end_window() : metrics_.values();
    check_names_of_training(metrics, config_, validation_ != nullptr);
    append_optimizer(metrics);
    return metrics;
  }

  void append_optimizer(Metrics& metrics) const {
    metrics.emplace_back("lr", last_.lr);
    if (last_.grad_norm.defined()) {
      metrics.emplace_back("grad_norm", last_.grad_norm.item<double>());
    }
    if (const at::Tensor scale = strategy_->optimizer().loss_scale(); scale.defined()) {
      metrics.emplace_back("loss_scale", scale.item<double>());
    }
  }

  // Callbacks may add metrics, so they come before the row is written.
  Metrics publish(Stage stage, Metrics metrics) {
    StageContext context = at(stage);
    context.metrics = context.log_to = &metrics;
    notify(context);
    reports_.write(stage, metrics, /*may_differ=*/callbacks_.has_any());
    return metrics;
  }

  void validate() {
    const auto began = Clock::now();
    const auto batches = validation_->steps_per_epoch();
    notify(Stage::validation_start);
    auto evaluated = strategy_->evaluation_scope();
    auto scopes = callbacks_.validation_scopes(world_);
    const Evaluation evaluation =
        evaluate(task_, *validation_, world_, config_, control_,
                 {.max_batches = config_.validate.max_batches,
                  .least_stop = limits_.is_below_minimum(state_) ? StopKind::terminate : StopKind::program,
                  .on_batch = [&](std::int64_t steps) { reports_.show_validation(steps, batches); }});
    scopes.clear();
    evaluated.reset();
    validation_times_.note_validation();
    reports_.leave_out(Clock::now() - began);
    agreed_.stop = agreed_.stop || evaluation.stopped;
    place_.validation_is_due = !evaluation.complete;
    if (!evaluation.complete) {
      console_.line(fmt::format("step {}: the validation was stopped before its end and is not reported", state_.step));
      files_.event("validation_stopped", {{"step", state_.step}});
      return;
    }
    Metrics metrics = evaluation.means;
    for (auto& [name, value] : metrics) {
      name = fmt::format("{}{}", kValidationPrefix, name);
    }
    metrics = publish(Stage::validation_end, std::move(metrics));
    check_monitor(Stage::validation_end, metrics);
  }

  CheckpointContents contents() {
    WorldAccess::settle_device(world_);
    check_replicas(task_.module(), world_);
    check_values(/*ends_window=*/false);
    recorder_.flush();
    CheckpointContents contents = checkpoint_contents(run_parts(), measured());
    if (config_.checkpoint.weights_only) {
      keep_evaluation_weights(contents);
    }
    contents.values[kLaunchKey] = hold_->launch();
    contents.values[kParametersFinite] = anomalies_.parameters_finite() ? "true" : "false";
    return contents;
  }

  // Schedule-free AdamW evaluates other weights than it trains, and only its state leads from one to the other.
  void keep_evaluation_weights(CheckpointContents& contents) {
    if (const auto evaluated = strategy_->evaluation_scope()) {
      NamedTensors& model = contents.tensors["model"];
      model = module_tensors(task_.module());
      for (auto& [name, tensor] : model) {
        tensor = tensor.detach().clone();
      }
    }
  }

  // At reports and before saves, which wait for the device anyway.
  void check_values(bool ends_window) {
    is_between_steps_ = false;  // a step with bad values must not be saved
    if (anomalies_.check(snapshot_parts(), state_.step, ends_window)) {
      recorder_.note_rollback();
    }
    is_between_steps_ = true;
  }

  RunSnapshot::Parts snapshot_parts() { return {task_.module(), *strategy_, callbacks_, world_}; }

  // For the monitor of a checkpoint between two reports: the means since the last one.
  Metrics measured() {
    Metrics metrics = reports_.of_step();
    const std::string& monitor = config_.checkpoint.monitor;
    if (!monitor.empty() && stage_of_metric(monitor, config_) == Stage::report &&
        std::ranges::find(metrics, monitor, &Metrics::value_type::first) == metrics.end()) {
      const Metrics means = window_metrics(/*ends_window=*/false);
      metrics.insert(metrics.end(), means.begin(), means.end());
    }
    return metrics;
  }

  // The metrics are known only now; the training so far is saved.
  void check_monitor(Stage stage, const Metrics& measured) {
    const std::string& monitor = config_.checkpoint.monitor;
    if (monitor.empty() || stage_of_metric(monitor, config_) != stage) {
      return;
    }
    std::vector<std::string> names;
    for (const auto& [name, value] : measured) {
      names.push_back(name);
    }
    if (std::ranges::find(names, monitor) == names.end()) {
      save();
      throw ConfigError(fmt::format("--checkpoint.monitor {}: found no such metric", monitor),
                        fmt::format("use one of {}", join(names, ", ")));
    }
  }

  void save() {
    record_.set_phase(Phase::save);
    tell_saved(checkpoints_.save(state_.step, [this] { return contents(); }));
  }

  void tell_saved(const RunCheckpoints::Saves& saves) {
    for (const BackgroundSave& saved : saves) {
      StageContext context = at(Stage::checkpoint_saved);
      context.seconds = saved.seconds;
      notify(context);
    }
  }

  // A launcher of ours notes the failures of its ranks.
  void note_failure(const std::exception& error) noexcept {
    const bool launcher_notes_it = world_.size() > 1 || config_.dist.max_restarts > 0 || config_.memory.halve_batch;
    if (!launcher_notes_it) {
      files_.event("failure", {{"rank", std::int64_t{0}},
                               {"step", state_.step},
                               {"what", std::string(first_line(without_frames(error.what())))}});
    }
  }

  void tell_callbacks(const std::exception& error) noexcept {
    try {
      StageContext context = at(Stage::exception);
      context.error = error.what();
      notify(context);
    } catch (const std::exception& another) {
      log_warning(fmt::format("a callback failed after the failure: {}", without_frames(another.what())));
    }
  }

  // A run can be saved only between steps. With several ranks, no rank knows whether all are between the same steps.
  void save_after_failure() noexcept {
    try {
      if (is_between_steps_ && world_.size() == 1 && state_.step > 0 && !checkpoints_.is_saved(state_.step)) {
        checkpoints_.save_at_end(state_.step, [this] { return contents(); });
      }
      if (const auto step = checkpoints_.durable()) {
        log_info(fmt::format("step {} is saved in {}{}", *step, run_directory(config_),
                             config_.checkpoint.weights_only
                                 ? " (only the weights)"
                                 : fmt::format(": the same command{} resumes from it", change_of_command(config_))));
      }
    } catch (const std::exception& error) {
      log_warning(fmt::format("not saved after the failure: {}", without_frames(error.what())));
    }
  }

  FitResult finish() {
    record_.set_phase(Phase::finish);
    if (state_.step > 0 && !(resumed_ && steps_at_start_ == state_.step)) {
      if (!due(config_.report.every_steps)) {
        report();  // metrics since the last report
      }
      record_.set_phase(Phase::save);
      tell_saved(checkpoints_.save_at_end(state_.step, [this] { return contents(); }));
    }
    record_.set_phase(Phase::finish);
    recorder_.flush();
    reports_.end();
    const StopReason stop = agreed_.stop ? agree_on_reason(world_, control_) : StopReason{};
    FitResult result{.state = state_,
                     .stop = stop.kind,
                     .why = describe_end({.config = config_,
                                          .step = state_.step,
                                          .epoch = place_.number,
                                          .stop = stop,
                                          .saved = checkpoints_.durable().has_value(),
                                          .was_finished = resumed_ && steps_at_start_ == state_.step,
                                          .changed = changed_}),
                     .metrics = reports_.last(),
                     .best = checkpoints_.best(),
                     .seconds = seconds_since(began_)};
    control_.set_agreed(result.stop);
    tell_end(result, TimeShares(times_at_start_, record_.times()), config_, world_, console_, files_);
    strategy_->keep_evaluation_values();
    notify(Stage::fit_end);
    return result;
  }

  // What every stage has; some add a value.
  StageContext at(Stage stage) {
    return {.stage = stage,
            .state = state_,
            .module = task_.module(),
            .strategy = *strategy_,
            .world = world_,
            .plan = plan_,
            .control = control_,
            .step = last_,
            .log_to = &metrics_.logged(),
            .task = &task_,
            .train = &train_,
            .media = files_.media()};
  }

  void notify(Stage stage) { notify(at(stage)); }

  void notify(const StageContext& context) {
    const bool froze = callbacks_.call(context);
    if (froze && context.stage != Stage::fit_end) {
      const PhaseScope phase(record_, Phase::prepare);
      strategy_->prepare_again();
    }
  }

  const Plan& plan_;
  const TrainConfig& config_;
  World& world_;
  ProgressRecord& record_;
  TrainControl& control_;
  Console& console_;
  CallbackList& callbacks_;
  Task& task_;
  BatchSource& train_;
  BatchSource* validation_;
  const KeptMemory memory_;
  std::unique_ptr<Strategy> strategy_;
  const std::vector<MetricSinkFactory>& own_sinks_;
  const std::shared_ptr<RunHold> hold_;  // taken before the first file of the run is opened
  RunFiles files_;
  RunCheckpoints checkpoints_;
  RunCommands commands_;
  StepRecorder recorder_;
  StragglerWatch stragglers_;
  RunReports reports_;
  RunMetrics metrics_{config_.report.epoch_means, world_};
  TrainState state_{};
  StepResult last_{};
  Anomalies anomalies_{config_, world_, files_};
  EpochPlace place_{};
  StepRequests agreed_{};
  bool resumed_ = false;
  std::vector<std::string> changed_{};  // settings that changed since the checkpoint was written
  std::int64_t steps_at_start_ = 0;
  std::int64_t steps_here_ = 0;  // of this fit
  double lr_scale_ = 1;
  double loss_factor_ = 1;
  RunLimits limits_{config_};
  ValidationTimes validation_times_{config_.validate};
  const std::function<void(StrategyOptimizer&)> after_backward_ = [this](StrategyOptimizer& optimizer) {
    StageContext context = at(Stage::backward_end);
    context.optimizer = &optimizer;
    notify(context);
  };
  const PhaseTimes times_at_start_ = record_.times();
  StepTimes step_times_{world_, files_};
  bool is_between_steps_ = true;
  const Clock::time_point began_ = Clock::now();
};

}  // namespace

FitResult fit(TrainerParts& trainer, Task& task, BatchSource& train, BatchSource* validation) {
  return Fit(trainer, task, train, validation).run();
}

}  // namespace lockstep
