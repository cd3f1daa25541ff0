// One call of Trainer::fit.
#pragma once

#include <memory>
#include <vector>

#include <lockstep/base/control.h>
#include <lockstep/parallel/strategy.h>
#include <lockstep/plan/plan.h>
#include <lockstep/report/metric_sink.h>
#include <lockstep/trainer/task.h>
#include <lockstep/world/world.h>

#include "report/console.h"
#include "trainer/callbacks/callback_list.h"

namespace lockstep {

/// What a Trainer consists of.
struct TrainerParts {
  const Plan plan;
  World& world;
  TrainControl control;
  std::shared_ptr<Console> console;  ///< prints nothing on other ranks
  CallbackList callbacks{};
  std::vector<MetricSinkFactory> sinks{};
  StrategyFactory strategy{};            ///< empty: make_strategy
  Strategy* running_strategy = nullptr;  ///< that of the fit that is running
  bool has_fitted = false;               ///< a fit has begun: the module has weights that a later one continues with
};

/// Collective. `validation` may be nullptr.
FitResult fit(TrainerParts& trainer, Task& task, BatchSource& train, BatchSource* validation);

}  // namespace lockstep
