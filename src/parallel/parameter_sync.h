// Gives all ranks the same parameters and checks that they stay equal.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <lockstep/tensor/named_tensors.h>
#include <lockstep/world/world.h>

namespace lockstep {

/// Collective. Compares the models. Throws: CommError (exit 78) naming the rank and the first difference in name,
/// shape, dtype, order or requires_grad.
void compare_parameters(const torch::nn::Module& module, World& world);
/// Collective. Throws: CommError (exit 78) naming the first parameter that is frozen on one rank and not on another.
void compare_frozen(const torch::nn::Module& module, World& world);
/// Collective. Copies rank 0's parameters and buffers to all ranks.
void broadcast_module(const torch::nn::Module& module, World& world);
/// Collective. Copies the tensors of rank `root` to all ranks.
void broadcast_tensors(const std::vector<at::Tensor>& tensors, World& world, int root);
/// Collective. Copies rank 0's buffers to all ranks. Looks up the buffers at every call, because modules may replace
/// them.
void broadcast_buffers(const torch::nn::Module& module, World& world);

/// digest_of() each parameter. Shape: [parameters], int64, on their device; does not wait for it.
at::Tensor parameter_digests(const torch::nn::Module& module);
/// The buffers, by name, that all ranks compute alike: parts with a buffer "running_mean", such as batch norm, are left
/// out if they are no SyncBatchNorm, because they are statistics of the rank's own samples.
NamedTensors replicated_buffers(const torch::nn::Module& module);
/// Collective. Checks that the parameters, and the tensors of `more`, are equal on all ranks. `since`: the first step
/// after which they were seen to differ, if it is known. Throws: CommError (exit 78) naming the first different tensor
/// and its rank. Waits for the device.
void check_replicas(const torch::nn::Module& module, World& world, const NamedTensors& more = {},
                    std::optional<std::int64_t> since = std::nullopt);

}  // namespace lockstep
