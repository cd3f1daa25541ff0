// The hint for an out-of-memory error. Pure and torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/plan/plan.h>

namespace lockstep {

/// Memory of another process on a GPU.
struct GpuTenant {
  std::string name{};  ///< "pid 4242 'python train.py' (user x)"
  std::int64_t bytes = 0;
};

struct OutOfMemory {
  DeviceId device{};
  bool in_data_set = false;          ///< while a data set built samples
  std::vector<GpuTenant> tenants{};  ///< other processes on that GPU
  std::vector<int> free_gpus{};      ///< visible GPUs without other processes
};

/// "use --batch_size 16 --accumulation 4 --global_batch_size 128: the same training with smaller micro-batches; ..."
std::string memory_advice(const OutOfMemory& facts, const Plan& plan);

}  // namespace lockstep
