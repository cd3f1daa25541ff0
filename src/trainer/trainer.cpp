// What a program calls. The training loop is in fit.cpp.
#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <c10/core/DeviceGuard.h>

#include <lockstep/base/error.h>
#include <lockstep/optim/precision.h>
#include <lockstep/session.h>
#include <lockstep/trainer/callbacks.h>
#include <lockstep/trainer/trainer.h>

#include "trainer/agreed_stop.h"
#include "trainer/callbacks/function_callback.h"
#include "trainer/fit.h"
#include "trainer/in_precision.h"
#include "trainer/prediction.h"
#include "trainer/validate.h"

namespace lockstep {

struct Trainer::Impl : TrainerParts {};

namespace {

void add_configured_callbacks(const TrainConfig& config, CallbackList& callbacks) {
  if (const PlateauConfig& plateau = config.plateau; !plateau.metric.empty()) {
    callbacks.add(std::make_shared<ReduceOnPlateau>(ReduceOnPlateauOptions{.metric = plateau.metric,
                                                                           .mode = plateau.mode,
                                                                           .factor = plateau.factor,
                                                                           .patience = plateau.patience,
                                                                           .threshold = plateau.threshold,
                                                                           .cooldown = plateau.cooldown,
                                                                           .min_lr = plateau.min_lr}));
  }
  if (const EarlyStopConfig& stop = config.early_stop; !stop.metric.empty()) {
    callbacks.add(std::make_shared<EarlyStopping>(EarlyStoppingOptions{
        .metric = stop.metric, .mode = stop.mode, .patience = stop.patience, .min_delta = stop.min_delta}));
  }
}

}  // namespace

Trainer::Trainer(Session& session)
    : Trainer(std::make_unique<Impl>(Impl{{session.plan, session.world, session.control, session.console}})) {}

Trainer::Trainer(const Plan& plan, World& world, TrainControl control)
    : Trainer(std::make_unique<Impl>(Impl{{plan, world, std::move(control), silent_console()}})) {}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  std::optional<std::chrono::steady_clock::time_point> deadline = impl_->plan.facts.job_end;
  if (const double seconds = impl_->plan.config.max_time_s; seconds > 0) {
    const auto asked_for = std::chrono::steady_clock::now() + std::chrono::ceil<std::chrono::steady_clock::duration>(
                                                                  std::chrono::duration<double>(seconds));
    deadline = std::min(asked_for, deadline.value_or(asked_for));
  }
  if (deadline) {
    impl_->callbacks.add(std::make_shared<TimeLimit>(*deadline));
  }
  add_configured_callbacks(impl_->plan.config, impl_->callbacks);
}

Trainer::~Trainer() = default;

Trainer& Trainer::add(std::shared_ptr<Callback> callback) {
  impl_->callbacks.add(std::move(callback));
  return *this;
}

Trainer& Trainer::on(std::uint32_t stages, std::function<void(const StageContext&)> f, OnOptions options) {
  if (!f || options.every < 1) {
    throw ConfigError(f ? fmt::format("Trainer::on: every is {}, expected 1 or more", options.every)
                        : "Trainer::on: the function is missing");
  }
  const std::string name = options.name.empty() ? impl_->callbacks.free_name(stages) : options.name;
  return add(std::make_shared<FunctionCallback>(name, stages, std::move(f), std::move(options)));
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
  return lockstep::fit(*impl_, task, train, validation);
}

namespace {

/// Collective. Why all ranks stop, at the end of something other than a fit.
std::string end_by_request(World& world, TrainControl& control) {
  const StopReason stop = agree_on_reason(world, control);
  control.set_agreed(stop.kind);
  control.end_fit();
  return stop.text;
}

/// What a fit does around its validations, around one without a fit.
class OutsideFit {
 public:
  OutsideFit(TrainerParts& trainer, Task& task) : on_device_(trainer.world.device()), numerics_(trainer.plan.config) {
    place_module(task.module(), trainer.world.device(), trainer.plan.config);
    weights_ = trainer.callbacks.validation_scopes(trainer.world);
  }

 private:
  const c10::DeviceGuard on_device_;
  const NumericsScope numerics_;
  std::vector<std::shared_ptr<void>> weights_{};  // of callbacks such as WeightAverage
};

Metrics evaluate_alone(TrainerParts& trainer, Task& task, BatchSource& data, const EvaluationOptions& options) {
  const OutsideFit scope(trainer, task);
  Evaluation evaluation = evaluate(task, data, trainer.world, trainer.plan.config, trainer.control, options);
  if (!evaluation.complete) {
    throw Stopped("the validation", end_by_request(trainer.world, trainer.control));
  }
  return std::move(evaluation.means);
}

}  // namespace

Metrics Trainer::validate(Task& task, BatchSource& data) { return evaluate_alone(*impl_, task, data, {}); }

Metrics Trainer::test(Task& task, BatchSource& data) {
  return evaluate_alone(*impl_, task, data, {.step = &Task::test_step});
}

NamedTensors Trainer::predict(Task& task, BatchSource& data) {
  const OutsideFit scope(*impl_, task);
  Prediction prediction(task, data, impl_->world, impl_->plan.config, impl_->control);
  if (!prediction.run()) {
    throw Stopped("the prediction", end_by_request(impl_->world, impl_->control));
  }
  return prediction.gather();
}

void Trainer::predict(Task& task, BatchSource& data, const std::filesystem::path& directory, std::int64_t every_steps) {
  const OutsideFit scope(*impl_, task);
  Prediction prediction(task, data, impl_->world, impl_->plan.config, impl_->control);
  if (!prediction.run_into(directory, every_steps)) {
    throw Stopped("the prediction", end_by_request(impl_->world, impl_->control));
  }
}

TrainControl Trainer::control() const { return impl_->control; }

}  // namespace lockstep
