// What a program calls. The training loop is in fit.cpp.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string_view>
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
#include "trainer/output/metric_names.h"
#include "trainer/prediction.h"
#include "trainer/validate.h"

namespace lockstep {

struct Trainer::Impl : TrainerParts {
  bool is_configured = false;  // the callbacks of the configuration were added
};

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

void check_options(std::uint32_t stages, bool has_function, const OnOptions& options) {
  std::vector<Problem> problems;
  if (!has_function) {
    problems.push_back({"Trainer::on: the function is missing"});
  }
  if (options.every < 1) {
    problems.push_back({fmt::format("Trainer::on: every is {}, expected 1 or more", options.every)});
  }
  if (!(options.every_s >= 0)) {
    problems.push_back({fmt::format("Trainer::on: every_s is {}, expected 0 or more", options.every_s)});
  }
  if (options.every_s > 0 && (options.every != 1 || options.is_light)) {
    problems.push_back(
        {fmt::format("Trainer::on: every_s together with {}", options.is_light ? "is_light" : "every"),
         options.is_light ? "leave out is_light: the ranks send a message to agree on the time" : "use one of them"});
  }
  if (options.every_s > 0 && (stages & kWithoutMeeting) != 0) {
    problems.push_back({"Trainer::on: every_s at a stage inside a step or a loop, where the ranks do not meet",
                        "use another stage, such as step_end"});
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
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
    add_configured_callbacks(impl_->plan.config, impl_->callbacks);  // after those that log what they look at
  }
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

/// What a fit does around its validations, around a loop without a fit.
class OutsideFit {
 public:
  OutsideFit(TrainerParts& trainer, Task& task)
      : on_device_(trainer.world.device()), numerics_(trainer.plan.config), trainer_(trainer), task_(task) {
    place_module(task.module(), trainer.world.device(), trainer.plan.config);
    trainer.callbacks.begin(trainer.world);
  }

  StageContext at(Stage stage) {
    return {.stage = stage,
            .state = state_,
            .module = task_.module(),
            .world = trainer_.world,
            .plan = trainer_.plan,
            .control = trainer_.control,
            .step = step_,
            .task = &task_};
  }

 private:
  const c10::DeviceGuard on_device_;
  const NumericsScope numerics_;
  TrainerParts& trainer_;
  Task& task_;
  const TrainState state_{};
  const StepResult step_{};
};

/// A loop over data without gradients, for Trainer::validate and test.
struct EvaluationLoop {
  StepOutput (Task::*step)(const Batch&);
  Stage start;
  Stage batch_end;
  Stage end;
  std::string_view prefix;  ///< of the metrics, for callbacks
  const char* name;
};

constexpr EvaluationLoop kValidation{.step = &Task::validation_step,
                                     .start = Stage::validation_start,
                                     .batch_end = Stage::validation_batch_end,
                                     .end = Stage::validation_end,
                                     .prefix = kValidationPrefix,
                                     .name = "the validation"};
constexpr EvaluationLoop kTest{.step = &Task::test_step,
                               .start = Stage::test_start,
                               .batch_end = Stage::test_batch_end,
                               .end = Stage::test_end,
                               .prefix = kTestPrefix,
                               .name = "the test"};

Metrics evaluate_alone(TrainerParts& trainer, Task& task, BatchSource& data, const EvaluationLoop& loop) {
  OutsideFit outside(trainer, task);
  Metrics metrics;
  Metrics logged;
  const auto at = [&](Stage stage) {
    StageContext context = outside.at(stage);
    context.log_to = stage == loop.end ? &metrics : &logged;
    return context;
  };
  trainer.callbacks.call(at(loop.start));
  auto weights = trainer.callbacks.validation_scopes(trainer.world);
  Evaluation evaluation =
      evaluate(task, data, trainer.world, trainer.plan.config, trainer.control,
               {.step = loop.step, .on_output = output_callbacks(trainer.callbacks, at(loop.batch_end))});
  weights.clear();
  if (!evaluation.complete) {
    throw Stopped(loop.name, end_by_request(trainer.world, trainer.control));
  }
  metrics = std::move(evaluation.means);
  for (auto& [name, value] : metrics) {
    name.insert(0, loop.prefix);
  }
  StageContext end = at(loop.end);
  end.metrics = &metrics;
  for (const auto& [name, value] : logged) {
    end.log(name, value);
  }
  trainer.callbacks.call(end);
  for (auto& [name, value] : metrics) {
    name.erase(0, loop.prefix.size());
  }
  return metrics;
}

/// `predict` returns false if all ranks agreed on a stop.
template <class Predict>
void predict_alone(TrainerParts& trainer, Task& task, BatchSource& data, const Predict& predict) {
  OutsideFit outside(trainer, task);
  trainer.callbacks.call(outside.at(Stage::predict_start));
  auto weights = trainer.callbacks.validation_scopes(trainer.world);
  Prediction prediction(task, data, trainer.plan.config, trainer.callbacks, outside.at(Stage::predict_batch_end));
  const bool is_complete = predict(prediction);
  weights.clear();
  if (!is_complete) {
    throw Stopped("the prediction", end_by_request(trainer.world, trainer.control));
  }
  trainer.callbacks.call(outside.at(Stage::predict_end));
}

}  // namespace

Metrics Trainer::validate(Task& task, BatchSource& data) { return evaluate_alone(*impl_, task, data, kValidation); }

Metrics Trainer::test(Task& task, BatchSource& data) { return evaluate_alone(*impl_, task, data, kTest); }

NamedTensors Trainer::predict(Task& task, BatchSource& data) {
  NamedTensors results;
  predict_alone(*impl_, task, data, [&](Prediction& prediction) {
    if (!prediction.run()) {
      return false;
    }
    results = prediction.gather();
    return true;
  });
  return results;
}

void Trainer::predict(Task& task, BatchSource& data, const std::filesystem::path& directory, std::int64_t every_steps) {
  predict_alone(*impl_, task, data,
                [&](Prediction& prediction) { return prediction.run_into(directory, every_steps); });
}

TrainControl Trainer::control() const { return impl_->control; }

}  // namespace lockstep
