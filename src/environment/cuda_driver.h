// The GPUs that CUDA shows this process, in CUDA's own order. Torch-free.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// The UUIDs, without a prefix such as "GPU-". Starts the driver, which then has read CUDA's variables; creates no
/// context. Never throws; {}: the driver does not answer.
std::vector<std::string> cuda_gpus(const char* library = "libcuda.so.1");

/// Where CUDA counts the GPUs `uuids`, if it shows all of them; else {}. Pure.
std::vector<int> cuda_indices(const std::vector<std::string>& uuids, const std::vector<std::string>& shown);

}  // namespace lockstep
