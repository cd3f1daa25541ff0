// lockstep/checkpoint/module_state.h
//
// A module's parameters and buffers <-> named tensors.
#pragma once

#include <lockstep/fwd.h>
#include <lockstep/tensor/named_tensors.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Parameters and buffers under their names in the module, as detached aliases (no copy). Storage with several names
/// appears once, under the first name.
NamedTensors module_tensors(const torch::nn::Module& module);

/// Copies the tensors into the module, from any device; removes a leading "module." (Python DDP). Throws:
/// CheckpointError with the first ten missing and unexpected names, and both shapes and dtypes where they differ; the
/// module is then unchanged. `allow_partial`: loads the matching tensors and warns about the others.
void load_module(torch::nn::Module& module, const NamedTensors& tensors, bool allow_partial = false);

/// Throws in the same cases as load_module() without `allow_partial`; copies nothing.
void check_module(const torch::nn::Module& module, const NamedTensors& tensors);

}  // namespace lockstep
