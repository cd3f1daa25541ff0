#include "trainer/outside_fit.h"

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <c10/core/DeviceGuard.h>

#include <lockstep/optim/precision.h>
#include <lockstep/trainer/trainer.h>

#include "base/control_access.h"
#include "ipc/progress_record.h"
#include "trainer/agreed_stop.h"
#include "trainer/in_precision.h"
#include "trainer/output/metric_names.h"
#include "trainer/output/run_reports.h"
#include "trainer/prediction.h"
#include "trainer/step_limit.h"
#include "trainer/validate.h"

namespace lockstep {
namespace {

/// Collective. Why all ranks stop, at the end of something other than a fit.
std::string end_by_request(World& world, TrainControl& control) {
  const StopReason stop = agree_on_reason(world, control);
  control.set_agreed(stop.kind);
  TrainControlAccess::clear_requests(control);
  return stop.text;
}

/// A callback of a fit may call the loops, also with another Trainer. Then a stop waits for them: the fit ends by
/// itself, and saves.
std::optional<StopKind> least_stop(const TrainerParts& trainer) {
  return TrainControlAccess::in_fit(trainer.control) ? std::nullopt : std::optional(StopKind::program);
}

/// A callback of a fit evaluates the weights with which the fit validates. nullptr: the module has them.
std::shared_ptr<void> evaluated_weights(const TrainerParts& trainer) {
  return trainer.running_strategy != nullptr ? trainer.running_strategy->evaluation_scope() : nullptr;
}

/// Prepares for a loop without a fit what a fit prepares for its validations.
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

/// The last callbacks of a loop. A stop that they request comes too late for it, and is not for the next fit.
void call_at_end(TrainerParts& trainer, const StageContext& end) {
  const bool was_asked = trainer.control.stop_requested() != StopKind::none;
  trainer.callbacks.call(end);
  if (!was_asked && trainer.control.stop_requested() == StopKind::program &&
      !TrainControlAccess::in_fit(trainer.control)) {
    TrainControlAccess::clear_requests(trainer.control);
  }
}

/// A loop over data without gradients, for Trainer::validate and test.
struct EvaluationLoop {
  StepLimit (*limit)(const TrainConfig&);
  StepOutput (Task::*step)(const Batch&);
  Stage start;
  Stage batch_start;
  Stage batch_end;
  Stage end;
  std::string_view prefix;  ///< of the metrics, for callbacks
  Phase phase;
  const char* name;
};

constexpr EvaluationLoop kValidation{.limit = limit_of_validation,
                                     .step = &Task::validation_step,
                                     .start = Stage::validation_start,
                                     .batch_start = Stage::validation_batch_start,
                                     .batch_end = Stage::validation_batch_end,
                                     .end = Stage::validation_end,
                                     .prefix = kValidationPrefix,
                                     .phase = Phase::validation,
                                     .name = "the validation"};
constexpr EvaluationLoop kTest{.limit = limit_of_test,
                               .step = &Task::test_step,
                               .start = Stage::test_start,
                               .batch_start = Stage::test_batch_start,
                               .batch_end = Stage::test_batch_end,
                               .end = Stage::test_end,
                               .prefix = kTestPrefix,
                               .phase = Phase::test,
                               .name = "the test"};

Metrics evaluate_with(TrainerParts& trainer, Task& task, BatchSource& data, const EvaluationLoop& loop) {
  const TrainConfig& config = trainer.plan.config;
  const StepLimit limit = loop.limit(config);
  const std::int64_t most = limit.of(data);
  OutsideFit outside(trainer, task);
  Metrics metrics;
  Metrics logged;
  const auto at = [&](Stage stage) {
    StageContext context = outside.at(stage);
    context.log_to = stage == loop.end ? &metrics : &logged;
    return context;
  };
  trainer.callbacks.call(at(loop.start));
  auto scopes = trainer.callbacks.validation_scopes(trainer.world, evaluated_weights(trainer));
  Evaluation evaluation = evaluate(task, data, trainer.world, config, trainer.control,
                                   {.step = loop.step,
                                    .phase = loop.phase,
                                    .max_batches = most,
                                    .least_stop = least_stop(trainer),
                                    .on_batch_start = batch_callbacks(trainer.callbacks, at(loop.batch_start)),
                                    .on_batch_end = batch_callbacks(trainer.callbacks, at(loop.batch_end))});
  scopes.clear();
  if (!evaluation.complete) {
    trainer.callbacks.call(at(Stage::evaluation_stopped));
    throw Stopped(loop.name, end_by_request(trainer.world, trainer.control));
  }
  if (evaluation.is_part) {
    tell_part(loop.name, most, limit, config);
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
  call_at_end(trainer, end);
  if (trainer.callbacks.has_any()) {
    check_same_on_all_ranks(metrics, trainer.world);
  }
  for (auto& [name, value] : metrics) {
    name.erase(0, loop.prefix.size());
  }
  return metrics;
}

/// `predict` returns false if all ranks agreed on a stop.
template <class Predict>
void predict_with(TrainerParts& trainer, Task& task, BatchSource& data, const Predict& predict) {
  OutsideFit outside(trainer, task);
  trainer.callbacks.call(outside.at(Stage::predict_start));
  auto scopes = trainer.callbacks.validation_scopes(trainer.world, evaluated_weights(trainer));
  Prediction prediction(task, data, trainer.plan.config, trainer.callbacks, outside.at(Stage::predict_batch_start),
                        least_stop(trainer));
  const bool is_complete = predict(prediction);
  scopes.clear();
  if (!is_complete) {
    trainer.callbacks.call(outside.at(Stage::evaluation_stopped));
    throw Stopped("the prediction", end_by_request(trainer.world, trainer.control));
  }
  call_at_end(trainer, outside.at(Stage::predict_end));
}

}  // namespace

Metrics validate_alone(TrainerParts& trainer, Task& task, BatchSource& data) {
  return evaluate_with(trainer, task, data, kValidation);
}

Metrics test_alone(TrainerParts& trainer, Task& task, BatchSource& data) {
  return evaluate_with(trainer, task, data, kTest);
}

NamedTensors predict_alone(TrainerParts& trainer, Task& task, BatchSource& data) {
  NamedTensors results;
  predict_with(trainer, task, data, [&](Prediction& prediction) {
    if (!prediction.run()) {
      return false;
    }
    results = prediction.gather();
    return true;
  });
  return results;
}

void predict_into(TrainerParts& trainer, Task& task, BatchSource& data, const std::filesystem::path& directory,
                  std::int64_t every_steps) {
  predict_with(trainer, task, data,
               [&](Prediction& prediction) { return prediction.run_into(directory, every_steps); });
}

}  // namespace lockstep
