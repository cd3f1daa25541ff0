// lockstep/checkpoint/module_state.h
//
// A module's parameters and buffers <-> named tensors.
#pragma once

#include <lockstep/fwd.h>
#include <lockstep/world/named_tensors.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Parameters and buffers under the module's own names, as detached aliases (no copy); storage shared by several names once,
/// under the first.
NamedTensors module_tensors(const torch::nn::Module& module);

/// Copies in place, whatever the device; a leading "module." (Python DDP) is removed. Throws: CheckpointError listing the first
/// ten missing and unexpected names, and both shapes and dtypes where they differ; nothing is changed then.
/// `allow_partial`: what matches is loaded, the rest is warned about.
void load_module(torch::nn::Module& module, const NamedTensors& tensors, bool allow_partial = false);

/// Throws as load_module() without `allow_partial` would; copies nothing.
void check_module(const torch::nn::Module& module, const NamedTensors& tensors);

}  // namespace lockstep
