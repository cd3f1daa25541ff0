// Applies CUDA_VISIBLE_DEVICES to the GPUs of a machine, real or described in a file. Torch-free.
#pragma once

#include <string>
#include <vector>

#include <lockstep/environment/hardware.h>

namespace lockstep {

/// `Hardware::visible_devices` if the variable is not set.
inline constexpr const char* kUnset = "(unset)";

/// Sets the order in which CUDA counts GPUs. NVML, which is used before CUDA is loaded, counts them in PCI order;
/// CUDA's own default is fastest first, which differs if the GPUs differ.
inline constexpr const char* kDeviceOrder = "CUDA_DEVICE_ORDER";
inline constexpr const char* kPciOrder = "PCI_BUS_ID";

/// Applies CUDA's rules for CUDA_VISIBLE_DEVICES (kUnset: all) to the GPUs of a machine: indices in any order, or UUIDs
/// or unique prefixes of them, or MIG names (a process sees only the first), not mixed. The first invalid entry ends
/// the list; if a GPU appears twice, none is visible. Returns positions in `all`.
std::vector<int> visible_gpus(const std::vector<Gpu>& all, const std::string& visible_devices);

/// Sets gpus, gpus_present and, if the variable hides GPUs, gpu_note. Reads `hardware.visible_devices`.
void show_gpus(Hardware& hardware, std::vector<Gpu> all);

}  // namespace lockstep
