// Values in the options of optimizers, whose types differ.
#pragma once

#include <optional>

#include <torch/optim/optimizer.h>

namespace lockstep {

/// The weight decay in an optimizer's options; nullptr: they have none, or their type is unknown.
double* find_weight_decay(torch::optim::OptimizerOptions& options);

/// `momentum` of SGD and RMSprop, the first beta of Adam and AdamW; nullopt: another optimizer.
std::optional<double> momentum_of(const torch::optim::OptimizerOptions& options);

}  // namespace lockstep
