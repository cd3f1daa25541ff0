// What a fit saves.

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <lockstep/checkpoint/module_state.h>

#include "parallel/parameter_sync.h"
#include "trainer/fit_run.h"
#include "world/world_access.h"

namespace lockstep {

void Fit::save() {
  record_.set_phase(Phase::save);
  tell_saved(checkpoints_.save(state_.step, [this] { return contents(); }));
}

void Fit::tell_saved(const RunCheckpoints::Saves& saves) {
  for (const BackgroundSave& saved : saves) {
    StageContext context = at(Stage::checkpoint_saved);
    context.save_duration_s = saved.duration_s;
    context.saved_step = saved.step;
    notify(context);
  }
}

CheckpointContents Fit::contents() {
  WorldAccess::settle_device(world_);
  check_replicas(task_.module(), world_);
  anomalies_.look(task_.module(), state_.step);
  act_on_anomalies(Occasion::save);
  recorder_.flush();
  CheckpointContents contents = checkpoint_contents(run_parts(), measured());
  if (config_.checkpoint.weights_only) {
    keep_evaluation_weights(contents);
  }
  contents.values.merge(recorder_.values(world_));
  contents.values[kLaunchKey] = hold_->launch();
  contents.values[kParametersFinite] = anomalies_.parameters_finite() ? "true" : "false";
  return contents;
}

// Schedule-free AdamW evaluates other weights than it trains, and only its state leads from one to the other.
void Fit::keep_evaluation_weights(CheckpointContents& contents) {
  if (const auto evaluated = strategy_->evaluation_scope()) {
    NamedTensors& model = contents.tensors["model"];
    model = module_tensors(task_.module());
    for (auto& [name, tensor] : model) {
      tensor = tensor.detach().clone();
    }
  }
}

RunParts Fit::run_parts() {
  return {plan_,  world_, task_.module(), *strategy_,          train_, callbacks_,
          state_, place_, metrics_,       anomalies_.spikes(), limits_};
}

}  // namespace lockstep
