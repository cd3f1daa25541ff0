// GPUs of the machine, asked of NVML: needs no CUDA context and sees what CUDA_VISIBLE_DEVICES hides. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/environment/hardware.h>

namespace lockstep {

struct NvmlFacts {
  std::vector<Gpu> gpus{};  ///< in PCI bus order
  std::string note{};       ///< why there are none, or which one does not answer
};

/// Never throws for a machine without driver or GPU: that is a note.
NvmlFacts query_nvml(const char* library = "libnvidia-ml.so.1");

struct GpuProcess {
  std::int64_t pid = 0;
  std::int64_t bytes = 0;
};

/// The processes that compute on the GPU of this UUID; {}: nobody, or nobody knows.
std::vector<GpuProcess> gpu_processes(const std::string& uuid, const char* library = "libnvidia-ml.so.1");

}  // namespace lockstep
