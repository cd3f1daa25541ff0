// Ranks begin with the same parameters, and keep them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <lockstep/world/world.h>

namespace lockstep {

/// Collective. Throws: CommError (exit 78) naming the first difference in name, shape, dtype, order or requires_grad,
/// and the rank.
void compare_parameters(const torch::nn::Module& module, World& world);
/// Collective. Throws: CommError (exit 78) naming the first parameter that is frozen on one rank and not on another.
void compare_frozen(const torch::nn::Module& module, World& world);
/// Collective. Rank 0's parameters and buffers everywhere.
void broadcast_module(const torch::nn::Module& module, World& world);
/// Collective. Rank 0's buffers everywhere. Read anew each time: modules may replace them.
void broadcast_buffers(const torch::nn::Module& module, World& world);

/// One number for each parameter: the sum of its elements' bits, read as integers, modulo 2^64; the same on every kind
/// of device. Shape: [parameters], int64, on their device; nothing waits.
at::Tensor parameter_digests(const torch::nn::Module& module);
/// Collective. Parameters are the same on every rank. Throws: CommError (exit 78) naming the first that is not, and the
/// odd rank. Waits for the device.
void check_replicas(const torch::nn::Module& module, World& world);

}  // namespace lockstep
