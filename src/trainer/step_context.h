// What the steps of a fit work with, and the parts of a Step that only a loop uses.
#pragma once

#include <functional>

#include <lockstep/config/train_config.h>
#include <lockstep/parallel/strategy.h>
#include <lockstep/trainer/step.h>
#include <lockstep/world/world.h>

#include "trainer/meter.h"
#include "trainer/pass_graphs.h"
#include "trainer/watch/kept_buffers.h"
#include "trainer/watch/loss_check.h"
#include "trainer/watch/spike_gate.h"

namespace lockstep {

/// The same in all steps of a fit. The Step refers to it, so it must live longer.
struct Step::Context {
  Strategy& strategy;
  World& world;
  const TrainConfig& config;
  Meter& meter;
  Meter* epoch_meter = nullptr;     ///< report.epoch_means: of the whole epoch
  SpikeGate* spikes = nullptr;      ///< spike.policy skip
  KeptBuffers* buffers = nullptr;   ///< where an update may be left out
  LossCheck* loss_check = nullptr;  ///< on the main rank
  PassGraphs* graphs = nullptr;     ///< cuda_graphs
  /// Runs before each backward that has a loss; empty: nothing does.
  std::function<void(StrategyOptimizer&, const StepOutput&)> before_backward{};
  /// Runs before the gradients of an optimizer are clipped; empty: nothing does.
  std::function<void(StrategyOptimizer&)> after_backward{};
};

// A public header declares it, and so would export it.
struct [[gnu::visibility("hidden")]] StepAccess;

/// For a loop, which uses one Step for all steps.
struct StepAccess {
  using Context = Step::Context;

  static Step make(const Context& context) { return Step(context); }
  static void begin(Step& step, const StepBatches& batches, const TrainState& before, const ScheduleStep& at,
                    double loss_factor) {
    step.begin(batches, before, at, loss_factor);
  }
  static void end(Step& step) { step.end(); }
  static StepResult result(const Step& step) { return step.result(); }
  /// Whether a backward of this step, with samples, had a loss, or none.
  static bool backward_with_loss(const Step& step) noexcept { return step.now_.with_loss; }
  static bool backward_without_loss(const Step& step) noexcept { return step.now_.without_loss; }
};

}  // namespace lockstep
