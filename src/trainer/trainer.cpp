// What a program calls. The training loop is in fit.cpp.
#include <memory>
#include <utility>

#include <lockstep/base/error.h>
#include <lockstep/session.h>
#include <lockstep/trainer/callbacks.h>
#include <lockstep/trainer/trainer.h>

#include "base/option_check.h"
#include "session_access.h"
#include "trainer/callbacks/function_callback.h"
#include "trainer/fit.h"
#include "trainer/outside_fit.h"
#include "world/world_access.h"

namespace lockstep {

struct Trainer::Impl : TrainerParts {
  bool is_configured = false;  // the callbacks of the configuration were added
};

namespace {

// They come after those that log what they look at.
void add_configured_callbacks(const TrainConfig& config, CallbackList& callbacks) {
  if (const PlateauConfig& plateau = config.plateau; !plateau.metric.empty()) {
    callbacks.add(std::make_shared<ReduceOnPlateau>(ReduceOnPlateauOptions{.metric = plateau.metric,
                                                                           .mode = plateau.mode,
                                                                           .factor = plateau.factor,
                                                                           .patience = plateau.patience,
                                                                           .threshold = plateau.threshold,
                                                                           .cooldown = plateau.cooldown,
                                                                           .min_lr = plateau.min_lr}),
                  /*is_last=*/true);
  }
  if (const EarlyStopConfig& stop = config.early_stop; !stop.metric.empty()) {
    callbacks.add(
        std::make_shared<EarlyStopping>(EarlyStoppingOptions{.metric = stop.metric,
                                                             .mode = stop.mode,
                                                             .patience = stop.patience,
                                                             .min_delta = stop.min_delta,
                                                             .check_finite = stop.check_finite,
                                                             .stopping_threshold = stop.stopping_threshold,
                                                             .divergence_threshold = stop.divergence_threshold}),
        /*is_last=*/true);
  }
}

constexpr std::uint32_t kStagesThatComeOnce = Stage::fit_start | Stage::sanity_start | Stage::sanity_end |
                                              Stage::fit_end | Stage::exception | Stage::test_start | Stage::test_end |
                                              Stage::predict_start | Stage::predict_end | Stage::evaluation_stopped;

void check_options(std::uint32_t stages, bool has_function, const OnOptions& options) {
  const bool is_timed = options.every_s > 0;
  OptionCheck("Trainer::on")
      .refuse_if(!has_function, "the function is missing")
      .expect("stages", stages, are_stages(stages), "a Stage, or several with |")
      .expect("every", options.every, options.every >= 1, "1 or more")
      .expect("every_s", options.every_s, options.every_s >= 0, "0 or more")
      .refuse_if(is_timed && options.is_light, "every_s together with is_light",
                 "leave out is_light: the ranks send a message to agree on the time")
      .refuse_if(is_timed && options.every != 1 && !options.is_light, "every_s together with every", "use one of them")
      .refuse_if(is_timed && (stages & kUnsynchronizedStages) != 0,
                 "every_s at a stage inside a step or a loop, where the ranks are not synchronized",
                 "use another stage, such as step_end")
      .refuse_if(options.every != 1 && (stages & kStagesThatComeOnce) != 0, "every at a stage that comes once",
                 "leave it out, or add the function a second time for the other stages")
      .throw_problems();
}

}  // namespace

Trainer::Trainer(Session& session)
    : Trainer(std::make_unique<Impl>(
          Impl{{session.plan, session.world, session.control, SessionAccess::console(session)}})) {}

Trainer::Trainer(const Plan& plan, World& world)
    : Trainer(plan, world, WorldAccess::control_of_run(world).value_or(TrainControl())) {}

Trainer::Trainer(const Plan& plan, World& world, TrainControl control)
    : Trainer(std::make_unique<Impl>(Impl{{plan, world, std::move(control), silent_console()}})) {}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  if (const auto& deadline = impl_->plan.facts.job_end) {
    impl_->callbacks.add(std::make_shared<TimeLimit>(*deadline, "job_end"));
  }
}

Trainer::~Trainer() = default;

Trainer& Trainer::add(std::shared_ptr<Callback> callback) {
  impl_->callbacks.add(std::move(callback));
  return *this;
}

Trainer& Trainer::on(std::uint32_t stages, std::function<void(const StageContext&)> f, OnOptions options) {
  check_options(stages, f != nullptr, options);
  const std::string name = options.name.empty() ? impl_->callbacks.free_name(stages) : options.name;
  return add(std::make_shared<FunctionCallback>(name, stages, std::move(f), std::move(options)));
}

Trainer& Trainer::on_command(const std::string& word, std::function<void(const StageContext&)> f) {
  if (!f) {
    throw ConfigError("Trainer::on_command: the function is missing");
  }
  impl_->callbacks.add_command(word);
  return on(Stage::command, std::move(f),
            {.when = [word](const StageContext& at) { return at.command == word; }, .name = "command " + word});
}

Trainer& Trainer::add_sink(MetricSinkFactory make) {
  if (!make) {
    throw ConfigError("Trainer::add_sink: the function is missing");
  }
  impl_->sinks.push_back(std::move(make));
  return *this;
}

Trainer& Trainer::use_strategy(StrategyFactory make) {
  if (!make) {
    throw ConfigError("Trainer::use_strategy: the function is missing");
  }
  impl_->strategy = std::move(make);
  return *this;
}

FitResult Trainer::fit(Task& task, BatchSource& train, BatchSource* validation) {
  if (!std::exchange(impl_->is_configured, true)) {
    add_configured_callbacks(impl_->plan.config, impl_->callbacks);
  }
  return lockstep::fit(*impl_, task, train, validation);
}

Metrics Trainer::validate(Task& task, BatchSource& data) { return validate_alone(*impl_, task, data); }

Metrics Trainer::test(Task& task, BatchSource& data) { return test_alone(*impl_, task, data); }

NamedTensors Trainer::predict(Task& task, BatchSource& data) { return predict_alone(*impl_, task, data); }

void Trainer::predict(Task& task, BatchSource& data, const std::filesystem::path& directory, std::int64_t every_steps) {
  predict_into(*impl_, task, data, directory, every_steps);
}

TrainControl Trainer::control() const { return impl_->control; }

}  // namespace lockstep
