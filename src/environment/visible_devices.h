// CUDA_VISIBLE_DEVICES applied to the GPUs of a machine, found or described. Torch-free.
#pragma once

#include <vector>

#include <lockstep/environment/hardware.h>

namespace lockstep {

/// `Hardware::visible_devices` when the variable is not set.
inline constexpr const char* kUnset = "(unset)";

/// CUDA counts GPUs in the order that this variable says. NVML, which is what is asked before CUDA is loaded, counts them
/// in PCI order; CUDA's own default, the fastest first, is another one where GPUs differ.
inline constexpr const char* kDeviceOrder = "CUDA_DEVICE_ORDER";
inline constexpr const char* kPciOrder = "PCI_BUS_ID";

/// Fills gpus, gpus_present and, where the variable hides some, gpu_note. Reads `hardware.visible_devices`.
void show_gpus(Hardware& hardware, std::vector<Gpu> all);

}  // namespace lockstep
