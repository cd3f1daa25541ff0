// Ranks begin with the same parameters.
#pragma once

#include <torch/nn/module.h>

#include <lockstep/world/world.h>

namespace lockstep {

/// Collective. Throws: CommError (exit 78) naming the first difference in name, shape, dtype, order or requires_grad,
/// and the rank.
void compare_parameters(const torch::nn::Module& module, World& world);
/// Collective. Rank 0's parameters and buffers everywhere.
void broadcast_module(const torch::nn::Module& module, World& world);
/// Collective. Rank 0's buffers everywhere. Read anew each time: modules may replace them.
void broadcast_buffers(const torch::nn::Module& module, World& world);

}  // namespace lockstep
