#include "optim/option_values.h"

#include <tuple>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "optim/rule_optimizer.h"

namespace lockstep {
namespace {

/// Returns whether `options` are of this type.
template <class Options>
bool read(torch::optim::OptimizerOptions& options, OptionValues& values) {
  auto* const typed = dynamic_cast<Options*>(&options);
  if (typed == nullptr) {
    return false;
  }
  values.weight_decay = &typed->weight_decay();
  if constexpr (requires { typed->momentum(); }) {
    values.momentum = typed->momentum();
  } else if constexpr (requires { typed->betas(); }) {
    values.momentum = std::get<0>(typed->betas());
  }
  return true;
}

template <class... Types>
OptionValues read_one_of(torch::optim::OptimizerOptions& options) {
  OptionValues values;
  static_cast<void>((read<Types>(options, values) || ...));
  return values;
}

}  // namespace

OptionValues option_values(torch::optim::OptimizerOptions& options) {
  if (auto* rule = dynamic_cast<RuleOptions*>(&options)) {
    return {.weight_decay = rule->weight_decay ? &*rule->weight_decay : nullptr, .momentum = rule->momentum};
  }
  return read_one_of<torch::optim::AdamWOptions, torch::optim::AdamOptions, torch::optim::SGDOptions,
                     torch::optim::RMSpropOptions, torch::optim::AdagradOptions>(options);
}

}  // namespace lockstep
