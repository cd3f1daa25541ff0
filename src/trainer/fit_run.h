// One call of Trainer::fit: its parts and where it is. The loop is in fit.cpp.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/parallel/strategy.h>
#include <lockstep/trainer/step.h>
#include <lockstep/trainer/task.h>

#include "base/control_access.h"
#include "base/kept_memory.h"
#include "base/temporary_value.h"
#include "checkpoint/run_hold.h"
#include "ipc/progress_record.h"
#include "optim/param_groups.h"
#include "report/console.h"
#include "trainer/epoch_place.h"
#include "trainer/fit.h"
#include "trainer/fit_commands.h"
#include "trainer/interval_timer.h"
#include "trainer/output/fit_times.h"
#include "trainer/output/run_end.h"
#include "trainer/output/run_files.h"
#include "trainer/output/run_metrics.h"
#include "trainer/output/run_reports.h"
#include "trainer/output/step_recorder.h"
#include "trainer/output/step_times.h"
#include "trainer/pass_graphs.h"
#include "trainer/resume.h"
#include "trainer/run_checkpoints.h"
#include "trainer/run_limits.h"
#include "trainer/step_context.h"
#include "trainer/unread_source.h"
#include "trainer/validation_times.h"
#include "trainer/watch/anomalies.h"
#include "trainer/watch/loss_check.h"
#include "trainer/watch/monitor_check.h"
#include "trainer/watch/run_snapshot.h"
#include "trainer/watch/straggler_watch.h"

namespace lockstep {

/// Puts the phase and the callback of a rank's record back at its end. What a fit does after a failure must not look
/// like the place of the failure, and a callback that ran a fit of its own is still that callback.
class KeptPlace {
 public:
  explicit KeptPlace(ProgressRecord& record)
      : record_(record), phase_(record.phase.load(std::memory_order_relaxed)), callback_(record.callback.get()) {}
  ~KeptPlace() {
    record_.callback.set({callback_.data(), callback_.size()});
    record_.set_phase(phase_);
  }
  KeptPlace(const KeptPlace&) = delete;
  KeptPlace& operator=(const KeptPlace&) = delete;

 private:
  ProgressRecord& record_;
  Phase phase_;
  SharedText::Copy callback_;
};

/// The steps in a rank's record are those of the outermost fit. A fit in a callback of another one is a part of that
/// callback, and leaves its place as it was.
class FitPlace {
 public:
  explicit FitPlace(ProgressRecord& record) : record_(record) {
    if (std::exchange(record.in_fit, true)) {
      outer_.emplace(record);
    }
  }
  ~FitPlace() { record_.in_fit = outer_.has_value(); }
  FitPlace(const FitPlace&) = delete;
  FitPlace& operator=(const FitPlace&) = delete;

  void begin(std::int64_t step) noexcept {
    if (!outer_) {
      record_.begin_fit(step);
    }
  }
  void set_step(std::int64_t step) noexcept {
    if (!outer_) {
      record_.set_step(step);
    }
  }

 private:
  ProgressRecord& record_;
  std::optional<KeptPlace> outer_{};
};

/// The control knows how many fits are running.
class FitScope {
 public:
  explicit FitScope(TrainControl& control) : control_(control) { TrainControlAccess::begin_fit(control_); }
  ~FitScope() { TrainControlAccess::end_fit(control_); }
  FitScope(const FitScope&) = delete;
  FitScope& operator=(const FitScope&) = delete;

 private:
  TrainControl& control_;
};

class Fit {
 public:
  Fit(TrainerParts& trainer, Task& task, BatchSource& train, BatchSource* validation);
  ~Fit() = default;
  Fit(const Fit&) = delete;
  Fit& operator=(const Fit&) = delete;

  FitResult run();

 private:
  using Clock = RunReports::Clock;

  // fit.cpp: the loop and one step
  FitResult train();
  StepAccess::Context step_context();
  void begin_epoch();
  const StepBatches* next_batches();
  void follow_epoch_length();
  void run_step(Step& step, const StepBatches& batches);
  void after_step(bool ends_epoch);
  bool begins_epoch() const { return place_.begins_epoch(state_); }
  void enter_epoch() { place_ = {.number = state_.epoch + 1}; }
  void look_for_commands();
  StepRequests requests(const StepBatches& batches);
  void check_that_it_trains(const Step& step);
  void run_commands();
  void run_late_commands();
  void look_for_straggler();
  void look_for_stop();
  void look_at_time();
  ScheduleStep schedule_step() const;
  StageContext at(Stage stage);
  void notify(Stage stage) {
    if (callbacks_.acts_at(stage)) {  // an absent callback costs no call
      notify(at(stage));
    }
  }
  void notify(const StageContext& context);
  template <class Work>
  void as_a_whole(Work&& work);
  bool finished() const { return agreed_.stop || limits_.are_reached(state_); }
  bool due(std::int64_t every_steps) const { return every_steps > 0 && state_.step % every_steps == 0; }

  // fit_start.cpp: before the first step
  void prepare();
  void tell_taken_samples();
  void begin_with_weights();
  void resume(std::optional<RunCheckpoints::Origin> origin, const std::vector<NamedSchedule>& schedules);
  std::int64_t follow_global_batch();
  void set_rates_of_last_step();
  void prepare_graphs(bool has_metrics);
  void validate_at_start();

  // fit_reports.cpp: reports and validation
  void report();
  bool ends_window() const;
  void report_epoch();
  Metrics window_metrics(bool ends_window);
  void append_optimizer(Metrics& metrics) const;
  Metrics publish(Stage stage, Metrics metrics, const Metrics& logged = {});
  void validate();
  void validate_now();
  StopKind least_stop_of_validation() const;
  void act_on_anomalies(Occasion occasion);
  Metrics measured();
  void check_monitor(Stage stage, const Metrics& measured);

  // fit_saves.cpp: checkpoints
  void save();
  void tell_saved(const RunCheckpoints::Saves& saves);
  CheckpointContents contents();
  void keep_evaluation_weights(CheckpointContents& contents);
  RunParts run_parts();
  RunSnapshot::Parts snapshot_parts() { return {task_.module(), *strategy_, callbacks_, world_}; }

  // fit_end.cpp: the end, also by a failure
  FitResult finish();
  void end_failed(const std::exception& error) noexcept;
  void save_after_failure() noexcept;
  void record_last_steps() noexcept;
  void tell_what_is_left() noexcept;
  void note_failure(const std::exception& error) noexcept;
  void tell_callbacks(const std::exception& error) noexcept;

  const Plan& plan_;
  const TrainConfig& config_;
  World& world_;
  ProgressRecord& record_;
  DeviceClock& clock_;
  FitPlace recorded_steps_{record_};
  TrainControl& control_;
  const FitScope scope_{control_};
  Console& console_;
  CallbackList& callbacks_;
  Task& task_;
  BatchSource& train_;
  UnreadSource unread_train_{train_};
  BatchSource* validation_;
  bool& has_fitted_;  // this trainer, in this process
  const KeptMemory memory_;
  std::unique_ptr<Strategy> strategy_;
  const TemporaryValue<Strategy*> trainer_strategy_;
  const std::vector<MetricSinkFactory>& own_sinks_;
  const std::shared_ptr<RunHold> hold_;  // taken before the first file of the run is opened
  RunFiles files_;
  RunCheckpoints checkpoints_;
  const TemporaryValue<bool> run_has_fit_;
  FitCommands commands_;
  StepRecorder recorder_;
  StragglerWatch stragglers_;
  RunReports reports_;
  std::optional<PassGraphs> graphs_{};
  RunMetrics metrics_{config_.report.epoch_means, world_};
  TrainState state_{};
  StepResult last_{};
  Anomalies anomalies_{config_, world_, files_};
  LossCheck loss_check_{task_};
  EpochPlace place_{};
  StepRequests agreed_{};
  bool resumed_ = false;
  bool completed_validation_ = false;  // that the run before had begun
  bool has_validated_ = false;
  CheckpointMonitor monitor_{config_};
  std::vector<std::string> changed_{};  // settings that changed since the checkpoint was written
  std::int64_t steps_at_start_ = 0;
  std::int64_t steps_here_ = 0;  // of this fit
  double lr_scale_ = 1;
  double loss_factor_ = 1;
  RunLimits limits_{config_};
  ValidationTimes validation_times_{config_.validate};
  IntervalTimer report_timer_{config_.report.every_s};
  std::int64_t reported_at_ = -1;  // the step of the last report
  const std::function<bool()> asked_to_stop_ = [this] {
    look_for_commands();
    return limits_.must_stop(control_.stop_requested(), state_);
  };
  FitTimes times_{record_, clock_};
  StepTimes step_times_{world_, files_};
  bool is_between_steps_ = false;  // all that has been done is done by everyone: a failure now may be saved
  const Clock::time_point began_ = Clock::now();
};

/// What fails inside of `work` is half done, and must not be saved.
template <class Work>
void Fit::as_a_whole(Work&& work) {
  const bool before = std::exchange(is_between_steps_, false);
  work();
  is_between_steps_ = before;
}

}  // namespace lockstep
