// CUDA_VISIBLE_DEVICES applied to the GPUs of a machine, found or described. Torch-free.
#pragma once

#include <vector>

#include <lockstep/environment/hardware.h>

namespace lockstep {

/// `Hardware::visible_devices` when the variable is not set.
inline constexpr const char* kUnset = "(unset)";

/// Fills gpus, gpus_present and, where the variable hides some, gpu_note. Reads `hardware.visible_devices`.
void show_gpus(Hardware& hardware, std::vector<Gpu> all);

}  // namespace lockstep
