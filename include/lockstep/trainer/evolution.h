// lockstep/trainer/evolution.h
//
// Training without derivatives: of a simulator, a game, a loss with steps.
#pragma once

#include <functional>

#include <lockstep/trainer/step.h>

namespace [[gnu::visibility("default")]] lockstep {

/// How evolution_loss() estimates a gradient.
struct EvolutionOptions {
  int pairs = 8;        ///< each pair evaluates the loss at two points, parameters + noise and parameters - noise
  double sigma = 0.02;  ///< standard deviation of the noise
};

/// For Task::training_step: evaluates `loss` at random points around the parameters of `module`, without gradients, and
/// returns the mean of its values as a loss whose backward gives an estimate of the gradient (Salimans et al. 2017,
/// "Evolution Strategies as a Scalable Alternative to Reinforcement Learning", with antithetic pairs). Everything else
/// is an ordinary training: any optimizer, clipping, micro-batches, ranks, whose estimates are averaged, and bitwise
/// resume, as the noise comes from LibTorch's generator. `loss` returns a scalar tensor; it may read the module in any
/// way, but must not change it. Frozen parameters get no noise. Costs 2 x pairs evaluations, and memory for three times
/// the parameters. Without gradients, as in a validation, it returns `loss` of the parameters themselves. Throws:
/// ConfigError (an option out of its range, no parameter that requires gradients), Error (a loss that is not a scalar).
StepOutput evolution_loss(torch::nn::Module& module, const std::function<at::Tensor()>& loss,
                          const EvolutionOptions& options = {});

}  // namespace lockstep
