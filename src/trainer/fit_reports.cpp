// What a fit reports, and its validations.
#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>

#include "parallel/parameter_sync.h"
#include "trainer/fit_run.h"
#include "trainer/output/metric_names.h"
#include "trainer/step_limit.h"
#include "trainer/validate.h"

namespace lockstep {

void Fit::report() {
  record_.set_phase(Phase::report);
  reported_at_ = state_.step;
  report_timer_.restart();
  const bool ends = ends_window();
  Metrics metrics = window_metrics(ends);
  reports_.add_speed(metrics, state_.samples, /*may_decide=*/callbacks_.has_any());
  metrics.emplace_back("epoch", static_cast<double>(place_.number));
  metrics_.append_logged(metrics, ends);
  anomalies_.look(task_.module(), state_.step);
  metrics = publish(Stage::report, std::move(metrics));
  act_on_anomalies(due(config_.report.every_steps) ? Occasion::report_by_steps : Occasion::other_report);
  if (config_.report.step_times) {
    step_times_.report(state_.step);
  }
  if (config_.dist.check_replicas) {
    NamedTensors more = config_.dist.shard_optimizer ? NamedTensors() : strategy_->optimizer_state();
    if (!config_.dist.broadcast_buffers) {  // else the next forward replaces them by those of rank 0
      std::ranges::move(replicated_buffers(task_.module()), std::back_inserter(more));
    }
    check_replicas(task_.module(), world_, more, recorder_.find_divergence(world_));
  }
  check_monitor(Stage::report, metrics);
}

// Callbacks decide by the means of the reports by steps, so other reports do not end their window. If a run ends early,
// the run that continues it completes the window.
bool Fit::ends_window() const {
  const ReportConfig& when = config_.report;
  return due(when.every_steps) || (when.every_steps == 0 && when.every_s > 0 && agreed_.report);
}

void Fit::report_epoch() {
  if (!config_.report.epoch_means) {
    return;
  }
  record_.set_phase(Phase::report);
  if (anomalies_.can_roll_back()) {  // the means may have steps that the next report by steps leaves out
    anomalies_.look(task_.module(), state_.step);
  }
  const Metrics metrics = publish(Stage::epoch_report, metrics_.end_epoch());
  check_monitor(Stage::epoch_report, metrics);
}

// The means over the steps since the last report.
Metrics Fit::window_metrics(bool ends_window) {
  Metrics metrics = ends_window ? metrics_.end_window() : metrics_.values();
  append_optimizer(metrics);
  return metrics;
}

void Fit::append_optimizer(Metrics& metrics) const {
  metrics.emplace_back("lr", last_.lr);
  if (last_.grad_norm.defined()) {
    metrics.emplace_back("grad_norm", last_.grad_norm.item<double>());
  }
  for (std::size_t i = 0; i < last_.grad_norms.size(); ++i) {
    if (last_.grad_norms[i].defined()) {
      metrics.emplace_back(fmt::format("grad_norm_{}", i), last_.grad_norms[i].item<double>());
    }
  }
  for (std::size_t i = 0; i < strategy_->optimizer_count(); ++i) {
    if (const at::Tensor scale = strategy_->optimizer(i).loss_scale(); scale.defined()) {
      metrics.emplace_back(i == 0 ? "loss_scale" : fmt::format("loss_scale_{}", i), scale.item<double>());
    }
  }
}

// Callbacks may add metrics, so they come before the row is written. `logged`: what they added at an earlier stage.
Metrics Fit::publish(Stage stage, Metrics metrics, const Metrics& logged) {
  StageContext context = at(stage);
  context.metrics = context.log_to = &metrics;
  context.ends_window =
      stage == Stage::report ? ends_window() : stage != Stage::validation_end || !place_.validation_is_extra;
  context.is_left_out =
      stage != Stage::validation_end && (anomalies_.will_roll_back() || metrics_.have_left_out_steps());
  for (const auto& [name, value] : logged) {
    context.log(name, value);
  }
  notify(context);
  if (stage == Stage::report) {
    check_names_of_training(metrics, config_, validation_ != nullptr);
  }
  reports_.write(stage, metrics, /*may_differ=*/callbacks_.has_any());
  return metrics;
}

// The gradients of a step carry the requests. Here there may be no further step, so the ranks agree without one.
void Fit::look_for_stop() {
  agreed_.stop = agreed_.stop || world_.any(limits_.must_stop(control_.stop_requested(), state_));
}

void Fit::validate() {
  const LoaderPosition before = train_.position();
  try {
    // A resume validates again, and so calls these callbacks again.
    if (callbacks_.has(Stage::validation_start | Stage::validation_batch_start | Stage::validation_batch_end)) {
      as_a_whole([this] { validate_now(); });
    } else {
      validate_now();
    }
  } catch (...) {  // the validation may have been reading from the loader of the training
    is_between_steps_ = is_between_steps_ && train_.position() == before;
    throw;
  }
}

// A program that has asked for a stop before it wants the validation of these weights.
StopKind Fit::least_stop_of_validation() const {
  return agreed_.stop || limits_.is_below_minimum(state_) ? StopKind::terminate : StopKind::program;
}

void Fit::validate_now() {
  record_.set_phase(Phase::validation);
  const auto began = Clock::now();
  const auto all = validation_->steps_per_epoch();
  const std::int64_t most = limit_of_validation(config_).of(*validation_);
  const auto total = most == 0 ? all : std::min(most, all.value_or(most));
  Metrics logged;  // for this validation
  StageContext start = at(Stage::validation_start);
  start.log_to = &logged;
  notify(start);
  auto scopes = callbacks_.validation_scopes(world_, strategy_->evaluation_scope());
  const Evaluation evaluation =
      evaluate(task_, *validation_, world_, config_, control_,
               {.max_batches = most,
                .least_stop = least_stop_of_validation(),
                .on_step = [&](std::int64_t steps) { reports_.show_validation(steps, total); },
                .on_batch_start = batch_callbacks(callbacks_, at(Stage::validation_batch_start)),
                .on_batch_end = batch_callbacks(callbacks_, at(Stage::validation_batch_end))});
  scopes.clear();
  validation_times_.note_validation();
  reports_.leave_out(Clock::now() - began);
  if (!evaluation.complete) {
    agreed_.stop = true;
    place_.validation_is_due = true;
    console_.line(fmt::format("step {}: the validation was stopped before its end and is not reported", state_.step));
    files_.event("validation_stopped", {{"step", state_.step}});
    notify(Stage::evaluation_stopped);
    return;
  }
  const bool is_first = !std::exchange(has_validated_, true);
  if (is_first && world_.is_main()) {
    warn_about_names_of_validation(evaluation.means);
  }
  Metrics metrics = evaluation.means;
  for (auto& [name, value] : metrics) {
    name = fmt::format("{}{}", kValidationPrefix, name);
  }
  // Here the run can still be saved: no callback has seen this validation.
  if (is_first && !resumed_ && logged.empty() && !callbacks_.may_log(Stage::validation_end) &&
      !may_lack_metrics(metrics, config_)) {
    callbacks_.check_metrics_of_validation(metrics);
  }
  as_a_whole([&] {
    metrics = publish(Stage::validation_end, std::move(metrics), logged);
    place_.validation_is_due = false;
  });
  check_monitor(Stage::validation_end, metrics);
  look_for_stop();
}

// This waits for the device, so it is called at reports and before saves, which wait for it anyway.
void Fit::act_on_anomalies(Occasion occasion) {
  as_a_whole([&] {
    if (anomalies_.act(snapshot_parts(), state_.step, occasion)) {
      recorder_.note_rollback();
      reports_.forget_step();  // it was measured with other weights
      metrics_.note_left_out_steps(/*in_window=*/occasion != Occasion::report_by_steps);
    }
  });
}

// The metrics of a checkpoint, for its monitor. Between two reports, these are the means since the last one and what
// callbacks logged in this step, because an earlier value belongs to other weights.
Metrics Fit::measured() {
  Metrics metrics = reports_.of_step();
  std::erase_if(metrics, [&](const auto& metric) { return metrics_.is_older(metric.first); });
  const std::string& monitor = config_.checkpoint.monitor;
  const auto has_monitor = [&] { return find_metric(metrics, monitor) != nullptr; };
  if (monitor.empty() || stage_of_metric(monitor, config_) != Stage::report || has_monitor() ||
      anomalies_.has_rolled_back(state_.step)) {  // the steps since the last report are left out
    return metrics;
  }
  const Metrics means = window_metrics(/*ends_window=*/false);
  metrics.insert(metrics.end(), means.begin(), means.end());
  const Metrics& logged = metrics_.logged();  // in this step
  metrics.insert(metrics.end(), logged.begin(), logged.end());
  if (!has_monitor() && world_.is_main()) {
    monitor_.warn_at(state_.step);
  }
  return metrics;
}

// Only now it is known which metrics there are. The training so far is saved before the error.
void Fit::check_monitor(Stage stage, const Metrics& measured) {
  if (!monitor_.is_missing_in(measured, stage)) {
    return;
  }
  // A callback may log it at the end of the epoch. Ranks may have different callbacks.
  const bool may_come = stage == Stage::report && state_.epoch == 0 && world_.any(callbacks_.has(Stage::epoch_end));
  if (!may_come) {
    const ConfigError error = monitor_.not_found_in(measured);
    {
      const PhaseScope place(record_, Phase::save);  // the error is not one of the save
      save();
    }
    throw error;
  }
}

}  // namespace lockstep
