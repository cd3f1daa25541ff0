// Evaluation mode of a module for a while.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

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
  c10::Device device_;
  std::vector<std::shared_ptr<torch::nn::Module>> parts_;
  std::vector<bool> parts_were_training_{};
  bool was_training_;
  at::Tensor rng_;
};

}  // namespace lockstep
