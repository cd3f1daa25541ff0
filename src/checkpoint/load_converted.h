// Weights of another precision may begin a training.
#pragma once

#include <torch/nn/module.h>

#include <lockstep/checkpoint/module_state.h>

namespace lockstep {

/// load_module() of tensors that may have another floating-point dtype than those of the module.
LoadReport load_converted(torch::nn::Module& module, const NamedTensors& tensors, bool allow_partial);

/// Whether it would load all of them; copies nothing.
bool fits_converted(const torch::nn::Module& module, const NamedTensors& tensors);

}  // namespace lockstep
