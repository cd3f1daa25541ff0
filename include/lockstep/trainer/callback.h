// lockstep/trainer/callback.h
//
// Code of yours at fixed points of a run. It may take any time: no limit applies to it, and the other ranks wait. It
// may freeze and unfreeze parameters, with requires_grad_(), alike on every rank: the next step trains the others. The
// state of frozen parameters is kept and saved. At fit_start `state` says where a resumed run stands: the place to
// freeze by epoch. A learning rate that it writes into the options of an optimizer's group is what the schedule goes on
// from. Between ranks, each stage at which the program has a callback costs one small message: at step_end, one per
// step.
#pragma once

#include <cstdint>
#include <string_view>

#include <lockstep/base/control.h>
#include <lockstep/trainer/task.h>

namespace [[gnu::visibility("default")]] lockstep {

struct Stages {
  enum Stage : std::uint32_t {
    fit_start = 1,          ///< prepared and resumed; before the first step
    step_end = 2,           ///< after the update
    epoch_end = 4,          ///< after the last step of an epoch
    validation_end = 8,     ///< `metrics` holds the validation's means
    report = 16,            ///< `metrics` holds what goes to the console and the metric files
    checkpoint_saved = 32,  ///< durable
    fit_end = 64,
  };
};
using Stage = Stages::Stage;  ///< Stage::step_end is a mask by itself, Stage::step_end | Stage::report is one of both

using Metrics = std::vector<std::pair<std::string, double>>;

/// What a callback may look at or touch; what a stage has no value for is null.
struct StageContext {
  Stage stage;
  const TrainState& state;
  torch::nn::Module& module;
  Strategy& strategy;
  World& world;
  const Plan& plan;
  TrainControl& control;
  const StepResult& step;            ///< the last one's
  const Metrics* metrics = nullptr;  ///< the same on all ranks
  double seconds = 0;                ///< checkpoint_saved: what the save took, in the background or not
};

class Callback {
 public:
  virtual ~Callback() = default;
  virtual std::string_view name() const = 0;         ///< unique in a trainer; the key of its state in checkpoints
  virtual std::uint32_t stages() const = 0;          ///< a Stage, or several with |; asked for once per fit
  virtual void on(const StageContext& context) = 0;  ///< on every rank, in order of registration, at the same step
  virtual NamedTensors save() const { return {}; }   ///< goes into every checkpoint, rank 0's
  virtual void load(const NamedTensors&) {}          ///< on resume, what save() gave; not called when it gave nothing
};

}  // namespace lockstep
