// Training on one page: fit() is the loop, Task::optimize in step.cpp one step of it.
#include <algorithm>
#include <chrono>
#include <optional>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/rng_state.h>
#include <lockstep/optim/lr_schedule.h>
#include <lockstep/session.h>
#include <lockstep/trainer/callbacks.h>
#include <lockstep/trainer/trainer.h>

#include "base/text.h"
#include "parallel/parameter_sync.h"
#include "report/console.h"
#include "report/progress_bar.h"
#include "trainer/resume.h"
#include "trainer/run_checkpoints.h"
#include "trainer/run_files.h"
#include "trainer/step_recorder.h"
#include "trainer/straggler_watch.h"
#include "trainer/validate.h"
#include "world/world_access.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kValidationPrefix = "val_";

struct Parts {
  Plan plan;
  World& world;
  TrainControl control;
  std::shared_ptr<Console> console;  // silent off the main rank
  std::vector<std::shared_ptr<Callback>> callbacks{};
};

// One call of Trainer::fit.
class Fit {
 public:
  Fit(Parts& trainer, Task& task, BatchSource& train, BatchSource* validation)
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
        strategy_(make_strategy(plan_, world_)),
        files_(plan_, world_.is_main()),
        checkpoints_(plan_, world_, files_),
        recorder_(config_, world_),
        stragglers_(world_, plan_.host),
        progress_(trainer.console, config_.report.progress) {}

  FitResult run() {
    try {
      return train();
    } catch (const CommError&) {
      throw;  // the rank that is the cause says where to go on
    } catch (const IoError&) {
      throw;  // saving is what failed, or would
    } catch (...) {
      save_after_failure();
      throw;
    }
  }

 private:
  FitResult train() {
    prepare();
    notify(Stage::fit_start);
    while (!finished()) {  // limits and the agreed stop: the same answer on every rank
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
      if (due(config_.report.every_steps)) {
        report();  // the only place that waits for the device
      }
      if (validation_ != nullptr &&
          (due(config_.validate.every_steps) || epoch_due(config_.validate.every_epochs, *batches))) {
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
    module.to(world_.device());
    module.train();
    strategy_->prepare(module, task_.optimizers());
    if (monitors_validation() && validation_ == nullptr) {
      throw ConfigError(fmt::format("--checkpoint.monitor {}: found no validation data", config_.checkpoint.monitor),
                        "give fit() a validation source, or monitor a metric of the training, such as loss");
    }
    files_.event("start", {{"world_size", std::int64_t{world_.size()}}, {"launch", plan_.launch}});
    seed_rng(config_.seed, world_.rank(), /*step=*/0, world_.device());
    resume();
    record_.set_step(state_.step);
    total_steps_ = limit_in_steps();
    if (config_.optim.schedule == ScheduleKind::cosine && total_steps_ == 0 && config_.optim.decay_steps == 0) {
      throw ConfigError("--optim.schedule cosine: the length of the run is not known",
                        "set --max_steps or --optim.decay_steps");
    }
    files_.open_metrics(state_.step);
    recorder_.open(state_.step);
    report_time_ = Clock::now();
    report_samples_ = state_.samples;
  }

  void resume() {
    record_.set_phase(Phase::resume);
    const auto origin = checkpoints_.find_origin();
    if (!origin) {
      return;
    }
    auto parts = run_parts();
    restore(parts, origin->snapshot);
    resumed_ = true;
    steps_at_start_ = state_.step;
    checkpoints_.begin_at(state_.step);
    console_.line(
        fmt::format("resuming from {} (epoch {}, {} samples seen)", origin->name, state_.epoch, state_.samples));
    files_.event("resume", {{"step", state_.step}, {"epoch", state_.epoch}, {"from", origin->name}});
  }

  RunParts run_parts() { return {plan_, world_, task_.module(), *strategy_, train_, callbacks_, state_}; }

  // 0: no limit.
  std::int64_t limit_in_steps() const {
    const auto per_epoch = train_.steps_per_epoch();
    const auto by_epochs = config_.max_epochs > 0 && per_epoch ? config_.max_epochs * *per_epoch : 0;
    if (config_.max_steps > 0 && by_epochs > 0) {
      return std::min(config_.max_steps, by_epochs);
    }
    return std::max(config_.max_steps, by_epochs);
  }

  bool finished() const {
    return agreed_.stop || (config_.max_steps > 0 && state_.step >= config_.max_steps) ||
           (config_.max_epochs > 0 && state_.epoch >= config_.max_epochs);
  }

  bool due(std::int64_t every_steps) const { return every_steps > 0 && state_.step % every_steps == 0; }

  bool epoch_due(std::int64_t every_epochs, const StepBatches& batches) const {
    return every_epochs > 0 && batches.ends_epoch && state_.epoch % every_epochs == 0;
  }

  // From the resume position on; rolls into the next epoch by itself.
  const StepBatches* next_batches() {
    record_.set_phase(Phase::data);
    stragglers_.begin_step();
    const StepBatches* batches = train_.next();
    stragglers_.have_data();
    return batches;
  }

  void step(const StepBatches& batches) {
    stands_ = false;
    measured_.clear();
    strategy_->put({.stop = control_.stop_requested() != StopKind::none,
                    .save = control_.take_checkpoint_request() || checkpoints_.asks_by_time(),
                    .save_ended = checkpoints_.has_ended()});
    Step step({.strategy = *strategy_,
               .world = world_,
               .config = config_,
               .batches = batches,
               .meter = meter_,
               .number = state_.step,
               .lr_factor = lr_factor(config_.optim, total_steps_, state_.step)});
    task_.optimize(step);
    ++state_.step;
    record_.set_step(state_.step);
    state_.epoch += batches.ends_epoch ? 1 : 0;
    state_.samples += batches.global_samples;
    agreed_ = strategy_->agreed();
    last_ = step.result();
    recorder_.add(state_, batches, last_, task_.module());
    stands_ = true;
    show_progress(batches);
  }

  // Before reports, validation and saves: those are the main rank's own.
  void look_for_straggler() {
    if (const auto news = stragglers_.end_step(state_.step)) {
      if (world_.is_main()) {
        log_warning(news->text);
      }
      files_.event(news->event, news->fields);
    }
  }

  void show_progress(const StepBatches& batches) {
    if (now_.phase.empty() || batches.epoch != shown_epoch_) {
      shown_epoch_ = batches.epoch;
      now_.phase = fmt::format("epoch {}", batches.epoch + 1);
      now_.total = train_.steps_per_epoch();
      const auto position = train_.position();  // after this step
      now_.done = position.global_batch > 0 && !batches.ends_epoch ? position.consumed / position.global_batch - 1 : 0;
    }
    ++now_.done;
    now_.step = state_.step;
    now_.samples = state_.samples;
    progress_.update(now_);
  }

  void report() {
    record_.set_phase(Phase::report);
    Metrics metrics = meter_.take(world_);
    metrics.emplace_back("lr", last_.lr);
    if (last_.grad_norm.defined()) {
      metrics.emplace_back("grad_norm", last_.grad_norm.item<double>());
    }
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - report_time_).count();
    if (seconds > 0) {
      metrics.emplace_back("samples_per_s", static_cast<double>(state_.samples - report_samples_) / seconds);
    }
    metrics.emplace_back("epoch", static_cast<double>(state_.epoch));
    report_time_ = now;
    report_samples_ = state_.samples;
    publish(Stage::report, metrics);
    if (!monitors_validation()) {
      check_monitor(metrics);
    }
  }

  void publish(Stage stage, const Metrics& metrics) {
    std::vector<Metric> row;
    std::vector<Metric> line;  // the console shows epoch and rate in its own way
    for (const auto& [name, value] : metrics) {
      row.push_back({.name = name, .value = value});
      measured_.emplace_back(name, value);
      if (name != "epoch" && name != "samples_per_s") {
        line.push_back(row.back());
      }
    }
    files_.metrics(state_.step, row);
    progress_.report(now_, line);
    notify(stage, &metrics);
  }

  void validate() {
    const auto batches = validation_->steps_per_epoch();
    Metrics metrics =
        evaluate(task_, *validation_, world_, config_, config_.validate.max_batches, [&](std::int64_t done) {
          progress_.update(
              {.phase = "validation", .done = done, .total = batches, .step = state_.step, .samples = state_.samples});
        });
    for (auto& [name, value] : metrics) {
      name = fmt::format("{}{}", kValidationPrefix, name);
    }
    publish(Stage::validation_end, metrics);
    if (monitors_validation()) {
      check_monitor(metrics);
    }
    report_time_ = Clock::now();  // its time is not training time
    report_samples_ = state_.samples;
  }

  Snapshot snapshot() {
    WorldAccess::settle_device(world_);
    check_replicas(task_.module(), world_);
    recorder_.flush();
    return make_snapshot(run_parts(), measured_);
  }

  bool monitors_validation() const { return config_.checkpoint.monitor.starts_with(kValidationPrefix); }

  // Known only now; what was trained so far is not lost.
  void check_monitor(const Metrics& measured) {
    const std::string& monitor = config_.checkpoint.monitor;
    std::vector<std::string> names;
    for (const auto& [name, value] : measured) {
      names.push_back(name);
    }
    if (!monitor.empty() && std::find(names.begin(), names.end(), monitor) == names.end()) {
      save();
      throw ConfigError(fmt::format("--checkpoint.monitor {}: found no such metric", monitor),
                        fmt::format("use one of {}", join(names, ", ")));
    }
  }

  void save() {
    record_.set_phase(Phase::save);
    tell_saved(checkpoints_.save(state_.step, [this] { return snapshot(); }));
  }

  void tell_saved(const RunCheckpoints::Saves& saves) {
    for (const BackgroundSave& saved : saves) {
      notify(Stage::checkpoint_saved, nullptr, saved.seconds);
    }
  }

  // A run of one rank stands at the end of a step, or nowhere that could be saved. Of several ranks nobody knows.
  void save_after_failure() noexcept {
    try {
      if (stands_ && world_.size() == 1 && state_.step > 0 && !checkpoints_.is_saved(state_.step)) {
        checkpoints_.save_at_end(state_.step, [this] { return snapshot(); });
      }
      if (const auto step = checkpoints_.durable()) {
        log_info(
            fmt::format("step {} is saved in {}: the same command goes on from there", *step, run_directory(config_)));
      }
    } catch (const std::exception& error) {
      log_warning(fmt::format("not saved after the failure: {}", error.what()));
    }
  }

  FitResult finish() {
    record_.set_phase(Phase::finish);
    if (state_.step > 0 && !(resumed_ && steps_at_start_ == state_.step)) {
      if (!due(config_.report.every_steps)) {
        report();  // what was measured since the last report
      }
      record_.set_phase(Phase::save);
      tell_saved(checkpoints_.save_at_end(state_.step, [this] { return snapshot(); }));
    }
    record_.set_phase(Phase::finish);
    recorder_.flush();
    progress_.finish_phase();
    FitResult result{.state = state_, .stop = agreed_.stop ? agree_on_stop() : StopKind::none, .why = {}};
    result.why = describe_end(result.stop);
    control_.set_agreed(result.stop);
    files_.event("end", {{"step", state_.step}, {"epoch", state_.epoch}, {"why", result.why}});
    console_.line(result.why);
    notify(Stage::fit_end);
    return result;
  }

  // The stop came with the step; who asked, and why, is worth a gather now that the loop is over.
  StopKind agree_on_stop() {
    auto kind = StopKind::program;
    for (const auto& answer :
         world_.gather(fmt::format("{} {}", static_cast<int>(control_.stop_requested()), control_.stop_reason()))) {
      const auto theirs = static_cast<StopKind>(answer.front() - '0');
      if (theirs >= kind) {
        kind = theirs;
        stop_reason_ = answer.substr(2);
      }
    }
    return kind;
  }

  std::string describe_end(StopKind stop) const {
    const std::string where = fmt::format("step {}, epoch {}", state_.step, state_.epoch);
    const std::string saved =
        config_.checkpoint.enabled ? fmt::format(", saved in {}", run_directory(config_)) : std::string();
    if (stop == StopKind::program) {
      return fmt::format("stopped at {}: {}{}", where, stop_reason_, saved);
    }
    if (stop != StopKind::none) {
      return fmt::format("stopped at {}: {}{}; run the same command again to go on", where, stop_reason_, saved);
    }
    if (resumed_ && steps_at_start_ == state_.step) {
      return fmt::format(
          "nothing to do: this run is finished ({}){}; go on with a larger --max_epochs or --max_steps, or start "
          "over with --fresh",
          where, saved);
    }
    return fmt::format("finished at {}{}", where, saved);
  }

  void notify(Stage stage, const Metrics* metrics = nullptr, double seconds = 0) {
    for (const auto& callback : callbacks_) {
      if ((callback->stages() & static_cast<std::uint32_t>(stage)) != 0) {
        callback->on({stage, state_, task_.module(), *strategy_, world_, plan_, control_, last_, metrics, seconds});
      }
    }
  }

  const Plan& plan_;
  const TrainConfig& config_;
  World& world_;
  ProgressRecord& record_;
  TrainControl& control_;
  Console& console_;
  const std::vector<std::shared_ptr<Callback>>& callbacks_;
  Task& task_;
  BatchSource& train_;
  BatchSource* validation_;
  std::unique_ptr<Strategy> strategy_;
  RunFiles files_;
  RunCheckpoints checkpoints_;
  StepRecorder recorder_;
  StragglerWatch stragglers_;
  ProgressBar progress_;
  Meter meter_{};
  TrainState state_{};
  StepResult last_{};
  Progress now_{};
  std::int64_t shown_epoch_ = 0;
  ControlLane agreed_{};
  bool resumed_ = false;
  std::int64_t steps_at_start_ = 0;
  std::int64_t total_steps_ = 0;  // 0: not limited
  Metrics measured_{};            // since the last step
  bool stands_ = true;            // between two steps
  std::int64_t report_samples_ = 0;
  Clock::time_point report_time_{};
  std::string stop_reason_{};
};

}  // namespace

struct Trainer::Impl : Parts {};

Trainer::Trainer(Session& session)
    : Trainer(std::make_unique<Impl>(Impl{{session.plan, session.world, session.control, session.console}})) {}

Trainer::Trainer(const Plan& plan, World& world, TrainControl control)
    : Trainer(std::make_unique<Impl>(
          Impl{{plan, world, std::move(control),
                world.is_main() ? terminal_console(/*interactive=*/false, /*width=*/0) : silent_console()}})) {}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  std::optional<Clock::time_point> deadline = impl_->plan.job_end;
  if (const double seconds = impl_->plan.config.max_time_s; seconds > 0) {
    const auto asked_for = Clock::now() + std::chrono::ceil<Clock::duration>(std::chrono::duration<double>(seconds));
    deadline = std::min(asked_for, deadline.value_or(asked_for));
  }
  if (deadline) {
    add(std::make_shared<TimeLimit>(*deadline));
  }
}

Trainer::~Trainer() = default;

Trainer& Trainer::add(std::shared_ptr<Callback> callback) {
  for (const auto& other : impl_->callbacks) {
    if (other->name() == callback->name()) {
      throw ConfigError(fmt::format("two callbacks are called '{}'", callback->name()), "give each a name of its own");
    }
  }
  impl_->callbacks.push_back(std::move(callback));
  return *this;
}

FitResult Trainer::fit(Task& task, BatchSource& train, BatchSource* validation) {
  return Fit(*impl_, task, train, validation).run();
}

Metrics Trainer::validate(Task& task, BatchSource& data) {
  task.module().to(impl_->world.device());
  return evaluate(task, data, impl_->world, impl_->plan.config, impl_->plan.config.validate.max_batches,
                  [](std::int64_t) {});
}

TrainControl Trainer::control() const { return impl_->control; }

}  // namespace lockstep
