// Values in the options of optimizers, whose types differ.
#pragma once

#include <optional>

#include <torch/optim/optimizer.h>

namespace lockstep {

struct OptionValues {
  double* weight_decay = nullptr;    ///< nullptr: the options have none, or their type is unknown
  std::optional<double> momentum{};  ///< or the first beta, of an optimizer that has one of the two
};
/// `options` must outlive the result.
OptionValues option_values(torch::optim::OptimizerOptions& options);

}  // namespace lockstep
