// How a fit ends: finished, stopped or failed.
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/duration.h"
#include "base/exception_text.h"
#include "base/text.h"
#include "trainer/agreed_stop.h"
#include "trainer/fit_run.h"
#include "trainer/output/metric_names.h"
#include "trainer/output/run_end.h"
#include "trainer/output/time_shares.h"
#include "world/warn_on_main.h"
#include "world/world_access.h"

namespace lockstep {

namespace {

template <class Work>
void warn_if_it_fails(std::string_view what, const Work& work) noexcept {
  try {
    work();
  } catch (...) {
    log_warning(fmt::format("{}: {}", what, current_exception_text()));
  }
}

/// `limit`: the setting that ended the run.
std::string below_minimum(const TrainConfig& config, const TrainState& state, const std::string& limit) {
  const std::string minimum = state.step < config.min_steps ? fmt::format("--min_steps {}", config.min_steps)
                                                            : fmt::format("--min_epochs {}", config.min_epochs);
  return fmt::format("{} was not reached: {} ended the training at step {}", minimum, limit, state.step);
}

}  // namespace

// They came in the last step, on a GPU or while a rank waited for data.
void Fit::run_late_commands() {
  if (world_.any(commands_.has_own())) {
    run_commands();
  }
}

FitResult Fit::finish() {
  record_.set_phase(Phase::finish);
  run_late_commands();
  if (state_.step > 0 && !(resumed_ && steps_at_start_ == state_.step)) {
    if (reported_at_ != state_.step) {
      report();  // metrics since the last report
    }
    if (anomalies_.will_roll_back()) {  // a run that saves nothing also ends with the weights of before
      act_on_anomalies(Occasion::save);
    }
    record_.set_phase(Phase::save);
    tell_saved(checkpoints_.save_at_end(state_.step, [this] { return contents(); }));
  }
  record_.set_phase(Phase::finish);
  recorder_.flush();
  reports_.end();
  const StopReason stop = agreed_.stop ? agree_on_reason(world_, control_) : StopReason{};
  FitResult result{
      .state = state_,
      .stop = stop.kind,
      .why = describe_end({.plan = plan_,
                           .step = state_.step,
                           .epoch = place_.number,
                           .limit = limits_.reached(state_),
                           .stop = stop,
                           .saved = checkpoints_.durable().has_value(),
                           .was_finished = resumed_ && steps_at_start_ == state_.step && !completed_validation_,
                           .changed = changed_}),
      .metrics = reports_.last(),
      .best = checkpoints_.best(),
      .duration_s = seconds_since(began_)};
  control_.set_agreed(result.stop);
  const bool has_monitor = config_.checkpoint.monitor.empty() || monitor_.was_finite() || result.best.has_value();
  if (!has_monitor && !agreed_.stop && !config_.barebones && world_.is_main()) {
    log_warning(never_measured("--checkpoint.monitor", config_.checkpoint.monitor, monitor_.is_measured()));
  }
  if (world_.is_main() && limits_.are_reached(state_) && limits_.is_below_minimum(state_)) {
    log_warning(below_minimum(config_, state_, limits_.reached(state_)));
  }
  tell_end(result, place_.number, times_.until_now(train_.has_one_reader()), config_, world_, console_, files_);
  strategy_->keep_evaluation_values();
  notify(Stage::fit_end);
  return result;
}

// A CommError ends a fit in another way, see run().
void Fit::end_failed(const std::exception& error) noexcept {
  const KeptPlace place(record_);
  save_after_failure();
  record_last_steps();
  tell_what_is_left();
  note_failure(error);
  tell_callbacks(error);
}

// A run can be saved only between steps, and only if all ranks are there.
void Fit::save_after_failure() noexcept {
  try {
    const bool would_fail_again = record_.phase.load(std::memory_order_relaxed) == Phase::save;
    record_.set_phase(Phase::save);  // it may take any time
    if (!would_fail_again && is_between_steps_ && state_.step > 0 && config_.checkpoint.enabled &&
        WorldAccess::is_common_failure(world_, state_.step)) {
      if (!checkpoints_.is_saved(state_.step)) {
        checkpoints_.save_at_end(state_.step, [this] { return contents(); });
      }
    } else if (world_.size() > 1) {
      return;
    }
    checkpoints_.collect();  // the save that runs in the background may be the newest one
  } catch (...) {            // mostly of a save, and then the same on all ranks
    warn_on_main(world_, "not saved after the failure: " + current_exception_text());
  }
}

// A failure is about the last steps, and `lockstep compare` shows whether they differ from those of another run.
void Fit::record_last_steps() noexcept {
  warn_if_it_fails("the last steps are not recorded", [&] { recorder_.flush(); });
}

// A rank that failed says it: under a foreign launcher no other process knows of the failure.
void Fit::tell_what_is_left() noexcept {
  const auto step = checkpoints_.durable();
  const bool has_lost_steps = config_.checkpoint.enabled && steps_here_ > 0;
  const std::filesystem::path written = hold_->written_directory();
  std::error_code ignored;
  const bool was_moved = !written.empty() && !std::filesystem::exists(written, ignored);
  if (!plan_.facts.started_by_program && !was_moved && (step || has_lost_steps)) {
    WorldAccess::tell_what_is_left(world_, describe_saved(plan_, run_directory(config_), step));
  }
}

void Fit::note_failure(const std::exception& error) noexcept {
  if (!plan_.facts.started_by_program) {
    // Otherwise this process has neither trained nor resumed, and the launcher, too, writes -1.
    const bool has_begun = record_.step.load(std::memory_order_relaxed) >= 0;
    files_.event("failure", {{"rank", std::int64_t{world_.rank()}},
                             {"step", has_begun ? state_.step : -1},
                             {"what", std::string(first_line(without_frames(error.what())))}});
  }
}

void Fit::tell_callbacks(const std::exception& error) noexcept {
  warn_if_it_fails("a callback failed after the failure", [&] {
    StageContext context = at(Stage::exception);
    context.error = error.what();
    notify(context);
  });
}

}  // namespace lockstep
