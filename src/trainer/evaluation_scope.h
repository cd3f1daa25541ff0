// Evaluation mode of a module for a while.
#pragma once

#include <memory>
#include <vector>

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include "checkpoint/rng_scope.h"

namespace lockstep {

/// At its end, the random generators and the training flag of every submodule are those of before: a validation must
/// not affect the training, no matter how often it runs.
class EvaluationScope {
 public:
  EvaluationScope(torch::nn::Module& module, c10::Device device);
  ~EvaluationScope();
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  torch::nn::Module& module_;
  std::vector<std::shared_ptr<torch::nn::Module>> parts_;
  std::vector<bool> parts_were_training_{};
  bool was_training_;
  RngScope random_numbers_;
};

}  // namespace lockstep
