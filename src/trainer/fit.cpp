// The training loop is Fit::train; one step is Fit::run_step, and Task::optimize in step.cpp.
#include "trainer/fit.h"

#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <lockstep/base/error.h>
#include <lockstep/optim/precision.h>

#include "base/exception_text.h"
#include "base/text.h"
#include "checkpoint/rng_scope.h"
#include "trainer/fit_run.h"
#include "trainer/source_check.h"
#include "trainer/watch/repeated_warnings.h"
#include "world/warn_on_main.h"
#include "world/world_access.h"

namespace lockstep {

FitResult Fit::run() {
  if (c10::InferenceMode::is_enabled()) {
    throw Error("Trainer::fit was called in inference mode, in which nothing can be trained",
                "call it outside of c10::InferenceMode");
  }
  const at::AutoGradMode gradients(true);             // the program may call fit under a NoGradGuard
  const c10::DeviceGuard on_device(world_.device());  // the program may call fit in a thread of its own
  const NumericsScope numerics(config_);
  const RepeatedWarnings of_libtorch;
  const RngScope random_numbers(world_.device());  // a module made afterwards does not depend on what happened here
  try {
    return train();
  } catch (const CommError& error) {  // the rank that caused it reports the last save
    const KeptPlace place(record_);
    if (world_.device().is_cpu()) {  // a GPU may wait for the lost rank until the timeout of its collective
      record_last_steps();
    }
    tell_callbacks(error);
    throw;
  } catch (const std::exception& error) {
    end_failed(error);
    throw;
  } catch (...) {
    end_failed(Error(current_exception_text()));
    throw;
  }
}

FitResult Fit::train() {
  prepare();
  is_between_steps_ = true;
  notify(Stage::fit_start);
  anomalies_.begin(snapshot_parts(), state_.step);
  const StepAccess::Context context = step_context();
  Step step = StepAccess::make(context);
  if (!limits_.are_reached(state_)) {  // a finished run does not ask for more time
    look_at_time();
  }
  // A stop may have been requested before this fit, for example by SIGTERM. Only the loop checks for requests
  // repeatedly (see SignalScope), so stop_requested() must not be called here without a request.
  agreed_.stop = world_.any(!control_.stop_reason().empty() && limits_.must_stop(control_.stop_requested(), state_));
  validate_at_start();
  report_timer_.restart();
  while (!finished()) {  // limits and agreed stop: the same result on every rank
    if (begins_epoch()) {
      begin_epoch();
    }
    const StepBatches* batches = next_batches();
    if (batches == nullptr) {  // the source has ended, or a stop was requested while a rank waited for data
      agreed_.stop = world_.any(asked_to_stop_());
      if (!agreed_.stop && state_.step == 0) {
        throw DataError("the training data gave no steps", "give it at least one");
      }
      break;
    }
    if (begins_epoch() || place_.steps == 0) {
      follow_epoch_length();
    }
    const bool ends_epoch = batches->ends_epoch;  // what follows may read from the loader
    run_step(step, *batches);
    after_step(ends_epoch);
  }
  return finish();
}

StepAccess::Context Fit::step_context() {
  StepAccess::Context context{.strategy = *strategy_,
                              .world = world_,
                              .config = config_,
                              .meter = metrics_.of_window(),
                              .epoch_meter = metrics_.of_epoch(),
                              .spikes = anomalies_.spikes().gate(),
                              .buffers = anomalies_.buffers(),
                              .loss_check = world_.is_main() ? &loss_check_ : nullptr,
                              .graphs = graphs_ ? &*graphs_ : nullptr};
  if (callbacks_.has(Stage::backward_start)) {
    context.before_backward = [this](StrategyOptimizer& optimizer, const StepOutput& output) {
      StageContext start = at(Stage::backward_start);
      start.optimizer = &optimizer;
      start.output = &output;
      notify(start);
    };
  }
  if (callbacks_.has(Stage::backward_end)) {
    context.after_backward = [this](StrategyOptimizer& optimizer) {
      StageContext end = at(Stage::backward_end);
      end.optimizer = &optimizer;
      notify(end);
    };
  }
  return context;
}

void Fit::begin_epoch() {
  const bool has_callbacks = callbacks_.has(Stage::epoch_start);
  // A failure before the first step must not be saved: a resume would call these callbacks again.
  is_between_steps_ = !has_callbacks;
  notify(Stage::epoch_start);
  if (has_callbacks) {  // a stop before the first step is saved, and a resume then does not call them again
    enter_epoch();
  }
}

// Starts at the resume position and continues with the next epoch automatically.
const StepBatches* Fit::next_batches() {
  RECORD_USER_SCOPE("data");
  record_.set_phase(Phase::data);
  clock_.begin_step();
  stragglers_.begin_step();
  return train_.next_unless(asked_to_stop_);
}

// A ReloadedLoader may have other steps in each epoch.
void Fit::follow_epoch_length() {
  limits_.begin_epoch(state_.epoch, state_.step, train_.steps_per_epoch().value_or(0));
  validation_times_.set_steps_per_epoch(limits_.steps_per_epoch());
  follow_global_batch();
}

void Fit::run_step(Step& step, const StepBatches& batches) {
  check_step(batches);  // before anything is half done
  check_micro_batches(batches, config_.dist, world_.size());
  is_between_steps_ = false;
  reports_.forget_step();
  metrics_.forget_step();
  strategy_->begin_step(state_.step, requests(batches));
  if (callbacks_.has(Stage::step_start)) {
    StageContext start = at(Stage::step_start);
    start.batches = &batches;
    notify(start);
  }
  at::RecordFunction range(at::RecordScope::USER_SCOPE);  // in traces; nothing is done unless a profiler records
  if (range.isActive()) {
    range.before(fmt::format("step {}", state_.step + 1));
  }
  record_.set_phase(Phase::task);
  clock_.enter(Phase::task);
  StepAccess::begin(step, batches, state_, schedule_step(), loss_factor_);
  task_.optimize(step);
  record_.set_phase(Phase::task);  // what fails now is no failure of the optimizer
  StepAccess::end(step);
  if (steps_here_++ == 0) {
    check_that_it_trains(step);
  }
  ++state_.step;
  recorded_steps_.set_step(state_.step);
  if (begins_epoch()) {
    enter_epoch();
  }
  ++place_.steps;
  state_.epoch += batches.ends_epoch ? 1 : 0;
  state_.samples += batches.global_samples;
  agreed_ = strategy_->agreed();
  last_ = StepAccess::result(step);
  anomalies_.add(state_.step - 1, last_, batches);
  recorder_.add(state_, batches, last_, task_.module());
  if (steps_here_ == 1) {  // the first step warms up caches, memory and data loading
    reports_.begin_window(state_.samples);
  }
  reports_.show_step(state_, place_, train_.steps_per_epoch());
}

// What is due after a step.
void Fit::after_step(bool ends_epoch) {
  const bool validates_by_steps = validation_times_.is_due(state_, place_.steps, ends_epoch);
  place_.validation_is_due = validation_ != nullptr && (agreed_.validate || validates_by_steps);
  place_.validation_is_extra = agreed_.validate && !validates_by_steps;
  notify(Stage::step_end);
  if (ends_epoch) {
    notify(Stage::epoch_end);
  }
  if (agreed_.command) {
    run_commands();
  }
  look_for_straggler();
  if (due(config_.report.every_steps) || agreed_.report) {
    report();  // the only place that waits for the device
  }
  if (ends_epoch) {
    reports_.end_epoch();
    report_epoch();
  }
  is_between_steps_ = true;
  const bool may_have_asked = reported_at_ == state_.step || ends_epoch || place_.validation_is_due;
  if (may_have_asked && callbacks_.has_any()) {
    look_for_stop();
  }
  if (place_.validation_is_due) {
    validate();
  }
  if (finished()) {  // before the save, which then has it, too
    run_late_commands();
    if (reported_at_ != state_.step) {
      report();
    }
  }
  if (agreed_.save_ended) {
    record_.set_phase(Phase::save);
    tell_saved(checkpoints_.collect());
  }
  if (agreed_.save || checkpoints_.is_due(state_, ends_epoch)) {
    save();
  }
}

// A rank calls this also while it waits for data.
void Fit::look_for_commands() {
  commands_.look();
  look_at_time();
}

// What this rank asks for; all ranks agree on it at the end of the step.
StepRequests Fit::requests(const StepBatches& batches) {
  look_for_commands();
  const StepRequests commands = commands_.take_requests();
  const TrainState after{.step = state_.step + 1, .epoch = state_.epoch + (batches.ends_epoch ? 1 : 0), .samples = 0};
  return {.stop = limits_.must_stop(control_.stop_requested(), after),
          .save = control_.take_checkpoint_request() || commands.save || checkpoints_.asks_by_time(),
          .save_ended = checkpoints_.tells_end(),
          .validate = commands.validate || (world_.is_main() && validation_times_.asks_by_time()),
          .report = commands.report || (world_.is_main() && report_timer_.asks()),
          .command = commands.command};
}

// Only the main rank looks, because the clocks of the ranks differ.
void Fit::look_at_time() {
  if (world_.is_main() && limits_.is_time_over()) {
    const bool may_continue = config_.checkpoint.enabled && !config_.checkpoint.weights_only;
    control_.request_stop(fmt::format("the training time of {} is over{}", human_duration(config_.max_time_s),
                                      may_continue ? " (a larger --max_time_s continues)" : ""));
  }
}

void Fit::run_commands() {
  for (const std::string& command : commands_.take_own(world_)) {
    StageContext context = at(Stage::command);
    context.command = command;
    notify(context);
  }
}

// Without a loss on any rank, nothing is trained. The first step of a fit shows it.
void Fit::check_that_it_trains(const Step& step) {
  const bool lost = world_.any(StepAccess::backward_without_loss(step));
  if (lost && !world_.any(StepAccess::backward_with_loss(step))) {
    throw Error("no step returned a loss on any rank: nothing is trained",
                "return the loss of the batch from training_step()");
  }
}

// The main rank spends additional time in reports, validation and saves, so this comes before them.
void Fit::look_for_straggler() {
  clock_.end_step();
  if (const auto news = stragglers_.end_step(state_.step)) {
    warn_on_main(world_, news->text);
    files_.event(news->event, news->fields);
  }
}

ScheduleStep Fit::schedule_step() const {
  return {.step = state_.step,
          .total_steps = limits_.steps(),
          .steps_per_epoch = limits_.steps_per_epoch(),
          .lr_scale = lr_scale_,
          .epochs_from = limits_.epochs_from()};
}

// The context that every stage has. Some stages add a value.
StageContext Fit::at(Stage stage) {
  const bool has_report = stage != Stage::fit_end && stage != Stage::exception;  // no other one follows
  return {.stage = stage,
          .state = state_,
          .module = task_.module(),
          .world = world_,
          .plan = plan_,
          .control = control_,
          .step = last_,
          .strategy = strategy_.get(),
          .log_to = has_report ? &metrics_.logged() : nullptr,
          .task = &task_,
          .train = (stage & kUnsynchronizedStages) == 0 ? &train_ : &unread_train_,
          .media = files_.media()};
}

void Fit::notify(const StageContext& context) {
  const DeviceClock::Part on_device(clock_, Phase::callback);
  as_a_whole([&] {
    const bool froze = callbacks_.call(context);
    if (froze && context.stage != Stage::fit_end) {
      const PhaseScope phase(record_, Phase::prepare);
      strategy_->prepare_again();
    }
  });
}

namespace {

std::unique_ptr<Strategy> strategy_of(const TrainerParts& trainer) {
  if (!trainer.strategy) {
    return make_strategy(trainer.plan, trainer.world);
  }
  std::unique_ptr<Strategy> strategy = trainer.strategy(trainer.plan, trainer.world);
  if (strategy == nullptr) {
    throw ConfigError("the function given to Trainer::use_strategy returned no strategy",
                      "return make_strategy(plan, world), or a class of your own");
  }
  return strategy;
}

}  // namespace

Fit::Fit(TrainerParts& trainer, Task& task, BatchSource& train, BatchSource* validation)
    : plan_(trainer.plan),
      config_(plan_.config),
      world_(trainer.world),
      record_(WorldAccess::progress(world_)),
      clock_(WorldAccess::clock(world_)),
      control_(trainer.control),
      console_(*trainer.console),
      callbacks_(trainer.callbacks),
      task_(task),
      train_(train),
      validation_(validation),
      has_fitted_(trainer.has_fitted),
      memory_(config_.memory.keep_freed),
      strategy_(strategy_of(trainer)),
      trainer_strategy_(trainer.running_strategy, strategy_.get()),
      own_sinks_(trainer.sinks),
      hold_(RunHold::take(plan_, world_)),
      files_(plan_, hold_->path(), world_.is_main()),
      checkpoints_(plan_, world_, *hold_, files_),
      run_has_fit_(hold_->has_fit(), true),
      // A fit around this one gets the commands of the run.
      commands_(world_.is_main() && !run_has_fit_.before() ? hold_->written_directory() : std::filesystem::path(),
                callbacks_.commands(), control_),
      recorder_(config_, world_),
      stragglers_(world_, plan_.host),
      reports_(trainer.console, config_.report.progress, world_, files_) {}

FitResult fit(TrainerParts& trainer, Task& task, BatchSource& train, BatchSource* validation) {
  return Fit(trainer, task, train, validation).run();
}

}  // namespace lockstep
