// The weights of --init_weights, with which a training begins.
#pragma once

#include <cstddef>
#include <string>

#include <torch/nn/module.h>

#include <lockstep/world/world.h>

namespace lockstep {

/// Collective. Rank 0 reads a file or a checkpoint; every rank gets the weights. Returns the number of tensors that
/// were loaded. Throws: CheckpointError (they do not match the module).
std::size_t load_weights(torch::nn::Module& module, const std::string& from, bool allow_partial, World& world);

}  // namespace lockstep
