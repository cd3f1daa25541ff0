#include "optim/option_values.h"

#include <tuple>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "optim/rule_optimizer.h"

namespace lockstep {

double* find_weight_decay(torch::optim::OptimizerOptions& options) {
  const auto as = [&]<class Options>(Options* typed) { return typed == nullptr ? nullptr : &typed->weight_decay(); };
  double* found = as(dynamic_cast<torch::optim::AdamWOptions*>(&options));
  found = found != nullptr ? found : as(dynamic_cast<torch::optim::SGDOptions*>(&options));
  found = found != nullptr ? found : as(dynamic_cast<torch::optim::AdamOptions*>(&options));
  found = found != nullptr ? found : as(dynamic_cast<torch::optim::AdagradOptions*>(&options));
  found = found != nullptr ? found : as(dynamic_cast<torch::optim::RMSpropOptions*>(&options));
  if (auto* rule = dynamic_cast<RuleOptions*>(&options); rule != nullptr && rule->weight_decay) {
    found = &*rule->weight_decay;
  }
  return found;
}

std::optional<double> momentum_of(const torch::optim::OptimizerOptions& options) {
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&options)) {
    return sgd->momentum();
  }
  if (const auto* rmsprop = dynamic_cast<const torch::optim::RMSpropOptions*>(&options)) {
    return rmsprop->momentum();
  }
  if (const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&options)) {
    return std::get<0>(adam->betas());
  }
  if (const auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&options)) {
    return std::get<0>(adamw->betas());
  }
  return std::nullopt;
}

}  // namespace lockstep
