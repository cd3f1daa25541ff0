// The GPUs of the machine according to NVML: needs no CUDA context and also finds GPUs that CUDA_VISIBLE_DEVICES hides.
// Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/environment/hardware.h>

namespace lockstep {

struct NvmlFacts {
  std::vector<Gpu> gpus{};  ///< in PCI bus order
  std::string note{};       ///< why there are none, or which GPU does not answer
};

/// Never throws: a missing driver or GPU is described in `note`.
NvmlFacts query_nvml(const char* library = "libnvidia-ml.so.1");

struct GpuProcess {
  std::int64_t pid = 0;
  std::int64_t bytes = 0;
};

/// The processes that use the GPU with this UUID; {}: none, or not known.
std::vector<GpuProcess> gpu_processes(const std::string& uuid, const char* library = "libnvidia-ml.so.1");

}  // namespace lockstep
